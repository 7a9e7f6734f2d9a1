// Any view as a picture.

export function saveSvg(_view: HTMLElement, _name: string): void {}

export async function savePng(_view: HTMLElement, _name: string): Promise<void> {}
