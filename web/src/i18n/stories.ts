import type { Messages } from '../lib/i18n.svelte';

export default {
  'stories.title': { en: 'Stories', ko: '이야기' },
  'stories.lead': {
    en: 'What these models do, found on their weights: one click opens the place.',
    ko: '이 모델들이 하는 일을 가중치에서 찾았습니다. 누르면 바로 그 자리가 열립니다.',
  },
  'stories.next': { en: 'Next: {title}', ko: '다음: {title}' },
  'stories.close': { en: 'Close the story', ko: '이야기 닫기' },
  'stories.try': { en: 'Try it on the model', ko: '모델에서 직접 꺼 보기' },
  'stories.attention': { en: 'Attention of the marked token', ko: '표시된 토큰의 어텐션' },
  'stories.probabilities': { en: 'Probabilities', ko: '확률' },
  'stories.step': { en: 'step {step}', ko: '{step}스텝' },
} satisfies Messages;
