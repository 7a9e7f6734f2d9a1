// Makes an element with horizontal overflow focusable, so that it scrolls by keyboard.

import type { Attachment } from 'svelte/attachments';

export const scrollable: Attachment<HTMLElement> = (element) => {
  const update = (): void => {
    if (element.scrollWidth > element.clientWidth + 1) element.tabIndex = 0;
    else element.removeAttribute('tabindex');
  };
  const observer = new ResizeObserver(update);
  observer.observe(element);
  document.fonts.addEventListener('loadingdone', update); // a late font may make a formula wider
  return () => {
    observer.disconnect();
    document.fonts.removeEventListener('loadingdone', update);
  };
};
