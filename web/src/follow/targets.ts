// What can be clicked in a scene, and where it is.

import { formatPercent } from '../lib/format';
import { t } from '../lib/i18n.svelte';
import { tokenName } from './captions';
import { cameraOf, chipsOf, cropOf, inside, rowsOf, unitsLeft, type Box, type Plan } from './layout';
import { sceneLabel } from './paint';

export interface Target extends Box {
  key: string;
  kind: 'strip' | 'source' | 'units' | 'word' | 'scene';
  label: string;
  scene: number;
  move: number;
  token: number; // of a source
  at?: number; // where it was clicked, from left to right
}

export function targetsOf(plan: Plan, now: number, time: number): Target[] {
  const scene = plan.scenes[now];
  const targets: Target[] = [];
  const left = cameraOf(plan, time);
  const add = (kind: Target['kind'], label: string, { x, y, w, h }: Box, more: Partial<Target> = {}): void => {
    targets.push({
      key: `${kind} ${label} ${more.move}`,
      kind,
      label,
      x: x - left,
      y,
      w,
      h,
      scene: now,
      move: 0,
      token: 0,
      ...more,
    });
  };
  for (const tower of plan.towers)
    for (const row of rowsOf(plan, tower, time)) {
      const other = plan.scenes[row.scene];
      if (row.scene !== now) {
        if (!plan.narrow || other.tower === scene.tower)
          add(
            'scene',
            `${row.scene + 1}: ${sceneLabel(other)}`,
            { ...row.strip, x: row.x, w: row.strip.w + row.strip.x - row.x },
            { scene: row.scene },
          );
        continue;
      }
      const token = tokenName(plan.trace, scene.pass.sequence, scene.pass.position);
      add('strip', t('follow.strip', { token, size: scene.moves[0].to.length }), row.strip);
      for (const chip of chipsOf(plan, tower, row, time))
        add(
          'source',
          t('follow.source', {
            source: tokenName(plan.trace, chip.sequence, chip.token),
            share: formatPercent(chip.share),
          }),
          { x: chip.from[0] - 30, y: chip.from[1] - 12, w: 60, h: 24 },
          { move: chip.move, token: chip.token },
        );
      for (const [n, move] of scene.moves.entries())
        if (move.units.length) {
          const y = (row.strip.y + row.strip.h + row.y + row.h) / 2;
          const x = unitsLeft(tower.strip, tower.rail.x(tower.rail.followed));
          add('units', t('follow.units'), { x, y: y - 12, w: 176, h: 24 }, { move: n });
        }
      if (scene.reading && !Number.isNaN(tower.word) && scene.kind !== 'output')
        add('word', t('follow.words'), {
          x: tower.word - 4,
          y: row.strip.y - 4,
          w: plan.narrow ? 80 : 124,
          h: row.strip.h + 8,
        });
    }
  return targets;
}

/** The token of the rail at a place, if it can be followed. */
export function tokenAt(plan: Plan, now: number, x: number, y: number): { sequence: string; token: number } | null {
  const place = x + cameraOf(plan, now + 0.99);
  for (const { rail, strip } of plan.towers) {
    if (y < rail.y || place < strip.x || place > strip.x + strip.w) continue;
    const { sequence, picture } = rail;
    if (picture && place >= picture.x && place <= picture.x + picture.w) {
      const hit = (box: Box): boolean => place >= box.x && place < box.x + box.w && y >= box.y && y < box.y + box.h;
      const crops = sequence.tokens.map((token) => cropOf(token, plan.extent));
      const token = crops.findIndex((crop) => crop && hit(inside(picture, crop)));
      return token < 0 ? null : { sequence: sequence.name, token };
    }
    const near = sequence.tokens.map((one, n) => (picture && one.box ? Infinity : Math.abs(rail.x(n) - place)));
    const token = near.indexOf(Math.min(...near));
    return near[token] < 40 ? { sequence: sequence.name, token } : null;
  }
  return null;
}
