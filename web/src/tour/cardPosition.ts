// Places the tour card where it does not cover the highlighted element.

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}
export interface CardPosition {
  left: number;
  top: number;
}

const GAP = 16;
const EDGE = 12;

/**
 * Beside the thing where there is room: right, below, above (at its right end, where less stands), and left last,
 * where the diagram is; else in the corner that covers least of it.
 */
export function cardPosition(
  thing: Box | null,
  card: { width: number; height: number },
  view: { width: number; height: number },
): CardPosition {
  const most = {
    left: Math.max(EDGE, view.width - card.width - EDGE),
    top: Math.max(EDGE, view.height - card.height - EDGE),
  };
  const kept = (left: number, top: number): CardPosition => ({
    left: Math.max(EDGE, Math.min(most.left, left)),
    top: Math.max(EDGE, Math.min(most.top, top)),
  });
  if (!thing) return { left: most.left, top: most.top };
  const middle = (thing.top + thing.bottom - card.height) / 2;
  if (view.width - thing.right >= card.width + GAP + EDGE) return kept(thing.right + GAP, middle);
  if (view.height - thing.bottom >= card.height + GAP + EDGE) return kept(thing.right - card.width, thing.bottom + GAP);
  if (thing.top >= card.height + GAP + EDGE) return kept(thing.right - card.width, thing.top - card.height - GAP);
  if (thing.left >= card.width + GAP + EDGE) return kept(thing.left - card.width - GAP, middle);
  const corners: CardPosition[] = [
    most,
    { left: EDGE, top: most.top },
    { left: most.left, top: EDGE },
    { left: EDGE, top: EDGE },
  ];
  const covers = ({ left, top }: CardPosition): number =>
    Math.max(0, Math.min(left + card.width, thing.right) - Math.max(left, thing.left)) *
    Math.max(0, Math.min(top + card.height, thing.bottom) - Math.max(top, thing.top));
  return corners.reduce((best, one) => (covers(one) < covers(best) ? one : best));
}
