import { expect, it } from 'vitest';
import { pushed } from '../testSetup';
import { router } from './router.svelte';

it('reads and writes the URL', () => {
  router.go({ model: 'a/b', view: 'heads', params: { in: 'x & y', head: 2 } });
  expect(pushed.at(-1)).toBe('#/a%2Fb/heads?in=x+%26+y&head=2');
  expect([router.model, router.view, router.param('in'), router.number('head', 0)]).toEqual([
    'a/b',
    'heads',
    'x & y',
    2,
  ]);
  router.go({ params: { in: null } });
  expect(router.href({})).toBe('#/a%2Fb/heads?head=2');
});

it('falls back to defaults', () => {
  expect(router.param('missing', 'default')).toBe('default');
  router.go({ params: { head: 'x' } });
  expect(router.number('head', 7)).toBe(7);
});

it('does not navigate to the current URL', () => {
  const count = pushed.length;
  router.go({});
  expect(pushed.length).toBe(count);
});
