// Makes an element with horizontal overflow focusable, so that it scrolls by keyboard.

import type { Attachment } from 'svelte/attachments';

export const scrollable: Attachment<HTMLElement> = (element) => {
  const heed = (): void => {
    if (element.scrollWidth > element.clientWidth + 1) element.tabIndex = 0;
    else element.removeAttribute('tabindex');
  };
  const watch = new ResizeObserver(heed);
  watch.observe(element);
  document.fonts.addEventListener('loadingdone', heed); // letters that come late make a formula wider
  return () => {
    watch.disconnect();
    document.fonts.removeEventListener('loadingdone', heed);
  };
};
