import type { Messages } from '../lib/i18n.svelte';

// The server's errors by code, `{name}` being a field; `error.CODE.UNIT` goes before `error.CODE`.
export default {
  'error.input_too_long.tokens': {
    en: 'The input is too long: it has {length} tokens, and the limit is {limit}. Shorten it.',
    ko: '글이 너무 깁니다. 토큰이 {length}개인데 {limit}개까지만 읽을 수 있습니다. 줄여서 다시 넣어 주세요.',
  },
  'error.input_too_long.characters': {
    en: 'The input is too long: it has {length} characters, and the limit is {limit}. Shorten it.',
    ko: '글이 너무 깁니다. {length}자인데 {limit}자까지만 읽을 수 있습니다. 줄여서 다시 넣어 주세요.',
  },
  'error.input_too_long': {
    en: 'The input is too long: its length is {length}, and the limit is {limit}. Shorten it.',
    ko: '입력이 너무 깁니다. 길이가 {length}인데 {limit}까지만 읽을 수 있습니다. 줄여서 다시 넣어 주세요.',
  },
  'error.model_not_found': {
    en: 'The server has no model “{name}”. It has: {known}.',
    ko: '서버에 “{name}” 모델이 없습니다. 사용할 수 있는 모델: {known}.',
  },
  'error.non_finite': {
    en: 'The model’s output contains NaN or infinity. Try another precision, e.g. `--dtype float32`.',
    ko: '모델의 출력에 NaN이나 무한대가 들어 있습니다. `--dtype float32`처럼 다른 정밀도로 실행해 보세요.',
  },
  'error.queue_full': {
    en: 'The server is busy: {limit} requests are in progress. Try again in a moment.',
    ko: '서버가 바쁩니다. 요청 {limit}개를 처리하고 있습니다. 잠시 후 다시 시도해 주세요.',
  },
  'error.request_timeout': {
    en: 'The server did not finish within {seconds} seconds. Try a shorter input.',
    ko: '서버가 {seconds}초 안에 끝내지 못했습니다. 입력을 줄여 다시 시도해 주세요.',
  },
  'error.invalid_api_key': {
    en: 'The server requires a token. Reload the page and enter the token as the password.',
    ko: '서버에 접속하려면 토큰이 필요합니다. 페이지를 새로 고친 뒤 토큰을 비밀번호로 입력해 주세요.',
  },
} satisfies Messages;
