import { expect, test } from 'vitest';
import { readPrompt, writePrompt, type Prompt } from './prompts';

test('a prompt survives the URL, and broken parts of it are left out', () => {
  const prompt: Prompt = { points: [[3, 4.5]], background_points: [[0, 7]], box: [1, 2, 30, 40] };
  const { points, box } = writePrompt(prompt);
  expect(readPrompt({ points: points!, box: box! })).toEqual(prompt);
  expect(readPrompt({ points: 'a,b,1;5,6,1', box: '1,2' })).toEqual({
    points: [[5, 6]],
    background_points: [],
    box: null,
  });
  expect(readPrompt({})).toBeNull();
});
