// The ten digits as pen strokes in a unit square, for users who cannot draw with a pointer.

export type Stroke = readonly (readonly [number, number])[];

const arc = (x: number, y: number, wide: number, high: number, from: number, to: number): Stroke =>
  Array.from({ length: 25 }, (_, n) => {
    const turn = 2 * Math.PI * (from + ((to - from) * n) / 24);
    return [x + wide * Math.cos(turn), y + high * Math.sin(turn)] as const;
  });

export const DIGITS: readonly (readonly Stroke[])[] = [
  [arc(0.5, 0.5, 0.22, 0.32, -0.25, 0.75)],
  [
    [
      [0.54, 0.18],
      [0.46, 0.82],
    ],
  ],
  [[...arc(0.5, 0.34, 0.2, 0.16, -0.5, 0.1), [0.3, 0.8], [0.74, 0.78]]],
  [[...arc(0.48, 0.34, 0.18, 0.16, -0.45, 0.25), ...arc(0.48, 0.65, 0.21, 0.16, -0.25, 0.42)]],
  [
    [
      [0.36, 0.2],
      [0.28, 0.52],
      [0.7, 0.5],
    ],
    [
      [0.66, 0.2],
      [0.6, 0.82],
    ],
  ],
  [[[0.68, 0.2], [0.38, 0.2], [0.34, 0.47], ...arc(0.47, 0.63, 0.2, 0.17, -0.3, 0.4)]],
  [[[0.62, 0.18], [0.42, 0.38], [0.34, 0.58], ...arc(0.5, 0.65, 0.16, 0.15, 0.5, 1.5)]],
  [
    [
      [0.28, 0.22],
      [0.7, 0.22],
      [0.56, 0.48],
      [0.46, 0.82],
    ],
  ],
  [arc(0.5, 0.34, 0.15, 0.15, 0.25, 1.25), arc(0.5, 0.65, 0.19, 0.16, -0.25, 0.75)],
  [[...arc(0.48, 0.36, 0.17, 0.16, 0, 1), [0.64, 0.55], [0.56, 0.82]]],
];
