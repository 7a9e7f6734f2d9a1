// A row of buttons with one tab stop; arrow keys move the focus (roving tabindex).

/** An action for the element that contains the buttons. */
export function rovingFocus(row: HTMLElement): { destroy: () => void } {
  const buttons = (): HTMLButtonElement[] => [...row.querySelectorAll<HTMLButtonElement>('button:not(:disabled)')];
  const only = (one: HTMLElement | undefined): void => {
    for (const button of buttons()) button.tabIndex = button === one ? 0 : -1;
  };
  const first = (): void =>
    only(buttons().find((button) => button.getAttribute('aria-pressed') === 'true') ?? buttons()[0]);

  function key(event: KeyboardEvent): void {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const all = buttons();
    const to = all[all.indexOf(event.target as HTMLButtonElement) + by];
    event.preventDefault();
    event.stopPropagation();
    if (!to) return;
    only(to);
    to.focus();
  }
  first();
  const watching = new MutationObserver(() => {
    if (!row.contains(document.activeElement)) first();
  });
  watching.observe(row, { childList: true });
  row.addEventListener('keydown', key);
  return {
    destroy: () => {
      watching.disconnect();
      row.removeEventListener('keydown', key);
    },
  };
}
