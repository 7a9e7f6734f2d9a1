import type { Words } from '../lib/words.svelte';

export default {
  'page.title': { en: 'The Transformer you can see through', ko: '속이 들여다보이는 트랜스포머' },
  'view.model': { en: 'Model', ko: '모델' },
  'view.heads': { en: 'Heads', ko: '헤드' },
  'view.decoding': { en: 'Decoding', ko: '디코딩' },
  'view.change': { en: 'Change it', ko: '바꿔 보기' },
  'view.learning': { en: 'Learning', ko: '학습 과정' },
  'save.svg': { en: 'Save this view as SVG', ko: '이 그림을 SVG로 저장' },
  'save.png': { en: 'Save this view as PNG', ko: '이 그림을 PNG로 저장' },
  'problem.no_server': {
    en: 'The server does not answer. Is `glassformer explore` still running?',
    ko: '서버가 응답하지 않습니다. `glassformer explore`가 실행 중인지 확인해 주세요.',
  },
} satisfies Words;
