import type { Messages } from '../lib/i18n.svelte';

export default {
  'intervene.title': { en: 'Intervene in the model', ko: '모델에 개입해 보기' },
  'intervene.lead': {
    en: 'Turn off parts of the model or edit its input. The weights stay the same. The results below compare the model before and after.',
    ko: '모델의 일부를 끄거나 입력을 바꿔 보세요. 가중치는 그대로이며, 아래에서 변경 전과 후를 비교합니다.',
  },
  'intervene.static': {
    en: 'This saved page contains one trace and no model, so nothing can be changed here. Run `glassformer explore` with the model to try interventions.',
    ko: '이 저장된 페이지에는 모델 없이 기록 하나만 들어 있어 바꿔 볼 수 없습니다. `glassformer explore`로 모델을 열어 시도해 보세요.',
  },
  'intervene.what': { en: 'Intervention', ko: '개입 대상' },
  'intervene.what.heads': { en: 'Heads', ko: '헤드' },
  'intervene.what.layers': { en: 'Layers', ko: '레이어' },
  'intervene.what.tokens': { en: 'Tokens', ko: '토큰' },
  'intervene.what.residual': { en: 'Residual stream', ko: '잔차 스트림' },
  'intervene.what.positions': { en: 'Positions', ko: '위치' },
  'intervene.changes': { en: 'Changes', ko: '변경 사항' },
  'intervene.left_out': {
    en: 'Some changes in the URL are duplicates or do not apply to this model and input. They were ignored.',
    ko: '주소에 적힌 변경 사항 가운데 이 모델과 입력에 맞지 않거나 중복된 것은 무시했습니다.',
  },
  'intervene.none': { en: 'None yet.', ko: '아직 없습니다.' },
  'intervene.clear': { en: 'Reset', ko: '모두 되돌리기' },
  'intervene.undo': { en: 'Undo: {what}', ko: '되돌리기: {what}' },
  'intervene.begin': { en: 'Try one of these:', ko: '이렇게 시작해 보세요.' },
  'intervene.rank_offer': {
    en: 'Which heads matter? Rank all heads',
    ko: '어떤 헤드가 중요할까요? 모든 헤드의 순위 매기기',
  },
  'intervene.intro.translate': {
    en: 'Make a change to compare the translations, token probabilities, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 번역문과 토큰 확률, 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.generate': {
    en: 'Make a change to compare the next-token predictions, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 다음 토큰 예측과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.fill': {
    en: 'Make a change to compare the predictions for the masked token, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 마스킹된 토큰 예측과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.embed': {
    en: 'Make a change to compare the embeddings, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 임베딩과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.classify': {
    en: 'Make a change to compare the label probabilities, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 레이블 확률과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.ask': {
    en: 'Make a change to compare the answers, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 답과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.answer': {
    en: 'Make a change to compare the answers, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 답과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.image': {
    en: 'Make a change to compare the class probabilities, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 클래스 확률과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.caption': {
    en: 'Make a change to compare the captions, predictions, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 캡션과 예측, 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.pair': { en: 'Cosine of image and text:', ko: '이미지와 텍스트의 코사인:' },
  'intervene.intro.similarity': {
    en: 'Make a change to compare the similarity, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 유사도와 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.detect': {
    en: 'Make a change to compare the objects, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 물체와 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.segment': {
    en: 'Turn off a head of the decoder to compare the masks and the attention before and after.',
    ko: '디코더의 헤드를 끄면 변경 전후의 마스크와 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.intro.forecast': {
    en: 'Make a change to compare the forecasts, residual stream and attention before and after.',
    ko: '무언가를 바꾸면 변경 전후의 예측과 잔차 스트림, 어텐션을 비교해 보여 줍니다.',
  },
  'intervene.working': { en: 'Running the model…', ko: '모델 실행 중…' },
  'intervene.before': { en: 'Before', ko: '이전' },
  'intervene.after': { en: 'After', ko: '이후' },
  'intervene.difference': { en: 'Difference', ko: '차이' },

  'intervene.block': { en: '{stack} layer {layer}', ko: '{stack} 레이어 {layer}' },
  'intervene.attention.self': { en: '{stack} layer {layer}, self-attention', ko: '{stack} 레이어 {layer} 셀프 어텐션' },
  'intervene.attention.cross': {
    en: '{stack} layer {layer}, cross-attention',
    ko: '{stack} 레이어 {layer} 크로스 어텐션',
  },
  'intervene.site.resid_in': { en: 'input', ko: '입력' },
  'intervene.site.resid_self': { en: 'after self-attention', ko: '셀프 어텐션 뒤' },
  'intervene.site.resid_cross': { en: 'after cross-attention', ko: '크로스 어텐션 뒤' },
  'intervene.site.resid_out': { en: 'output', ko: '출력' },
  'intervene.sequence.source': { en: 'Source', ko: '원문' },
  'intervene.sequence.target': { en: 'Target', ko: '출력문' },
  'intervene.sequence.input': { en: 'Input', ko: '입력' },
  'intervene.sequence.text': { en: 'Text', ko: '텍스트' },

  'intervene.label.ablate_head': { en: '{where}: head {head} off', ko: '{where}: 헤드 {head} 끔' },
  'intervene.label.skip_layer': { en: '{where} off', ko: '{where} 끔' },
  'intervene.label.mask_token': { en: '“{token}” ({n}) masked', ko: '“{token}” ({n}번째) 마스킹' },
  'intervene.label.swap': { en: '“{one}” and “{other}” swapped', ko: '“{one}”, “{other}” 자리 바꿈' },
  'intervene.label.residual': { en: '{where}, at “{token}”: × {scale}', ko: '{where}, “{token}” 자리: × {scale}' },
  'intervene.label.patch': { en: '{where} patched', ko: '{where} 바꿔 끼움' },
  'intervene.label.positions': { en: '{stack} positions × {stretch}', ko: '{stack} 위치 × {stretch}' },

  'intervene.heads': { en: 'Turn off heads', ko: '헤드 끄기' },
  'intervene.heads_note': {
    en: 'Each thumbnail is the attention of one head. Click it to ablate the head (its output becomes zero), or click a layer number to turn off all its heads.',
    ko: '그림 하나가 헤드 하나의 어텐션입니다. 누르면 헤드를 끕니다(출력이 0이 됩니다). 레이어 번호를 누르면 그 레이어의 헤드를 모두 끕니다.',
  },
  'intervene.layer': { en: 'layer', ko: '레이어' },
  'intervene.head_n': { en: 'head {head}', ko: '헤드 {head}' },
  'intervene.head_title': { en: 'Head {head}', ko: '헤드 {head}' },
  'intervene.on': { en: 'on', ko: '켜짐' },
  'intervene.off': { en: 'off', ko: '꺼짐' },
  'intervene.head_of': { en: '{where}, head {head}: {state}', ko: '{where}, 헤드 {head}: {state}' },
  'intervene.whole_layer': { en: 'All heads of this layer', ko: '이 레이어의 모든 헤드' },
  'intervene.whole_layer_of': { en: 'All heads of {where}', ko: '{where}의 모든 헤드' },
  'intervene.rank': { en: 'Rank all heads', ko: '모든 헤드의 순위 매기기' },
  'intervene.ranking': { en: 'ranking the heads …', ko: '헤드의 영향을 재는 중…' },
  'intervene.rank_stop': { en: 'Stop', ko: '멈추기' },
  'intervene.ranked': { en: 'Heads with the largest effect', ko: '영향이 가장 큰 헤드' },
  'intervene.effect': { en: 'Effect of turning it off: {effect}', ko: '이 헤드만 껐을 때의 영향: {effect}' },
  'intervene.measure.kl': {
    en: 'Measured by the change in the predicted probabilities (KL divergence in nats).',
    ko: '예측한 확률 분포의 변화(KL 발산, nat)로 잽니다.',
  },
  'intervene.measure.log_prob': {
    en: 'Measured by the drop of the log-probability of the token, in nats.',
    ko: '토큰의 로그 확률이 떨어진 정도(nat)로 잽니다.',
  },
  'intervene.measure.difference': {
    en: 'Measured by the mean absolute change of the output.',
    ko: '출력의 평균 절대 변화량으로 잽니다.',
  },

  'intervene.layers': { en: 'Layers', ko: '레이어' },
  'intervene.layers_note': {
    en: 'A layer that is turned off passes the residual stream through unchanged.',
    ko: '끈 레이어는 잔차 스트림을 그대로 통과시킵니다.',
  },

  'intervene.tokens': { en: 'Edit the input', ko: '입력 바꾸기' },
  'intervene.patch': { en: 'Patch {n}', ko: '패치 {n}' },
  'intervene.do': { en: 'Edit', ko: '동작' },
  'intervene.do.mask': { en: 'Mask', ko: '마스킹' },
  'intervene.do.swap': { en: 'Swap', ko: '자리 바꾸기' },
  'intervene.mask_note': {
    en: 'No other token can attend to a masked token. Positions stay the same.',
    ko: '마스킹한 토큰은 다른 토큰이 참조할 수 없습니다. 위치는 그대로입니다.',
  },
  'intervene.swap_note': { en: 'Select two tokens to swap them.', ko: '두 개를 고르면 서로 자리를 바꿉니다.' },
  'intervene.swap_second': {
    en: 'Select the second token (Escape to cancel).',
    ko: '두 번째 토큰을 고르세요. (Esc: 취소)',
  },

  'intervene.residual': { en: 'Scale the residual stream of one token', ko: '토큰 하나의 잔차 스트림에 배율 곱하기' },
  'intervene.residual_note': {
    en: 'Multiply the residual stream at one point of the model: 0 erases it, 1 leaves it unchanged.',
    ko: '모델의 한 지점에서 잔차 스트림에 배율을 곱합니다. 0이면 모두 지워지고, 1이면 그대로입니다.',
  },
  'intervene.site': { en: 'Location', ko: '지점' },
  'intervene.scale': { en: 'Scale', ko: '배율' },
  'intervene.at_token': { en: 'Token', ko: '토큰' },
  'intervene.apply': { en: 'Apply', ko: '적용' },

  'intervene.positions': { en: 'Scale positions', ko: '위치에 배율 곱하기' },
  'intervene.positions_note': {
    en: 'All position ids are multiplied by a factor, so that tokens appear farther apart or closer together than in training.',
    ko: '모든 위치에 배율을 곱해 토큰 사이가 학습할 때보다 멀거나 가깝게 보이게 합니다.',
  },
  'intervene.factor': { en: 'Factor', ko: '배율' },
  'intervene.factor_stack': { en: 'Apply to {stack} ({kind})', ko: '{stack}에 적용 ({kind})' },

  'intervene.outcome': { en: 'Model output', ko: '모델의 출력' },
  'intervene.outcome_free': {
    en: 'The changed model generated a new output.',
    ko: '변경한 모델이 출력을 새로 생성했습니다.',
  },
  'intervene.same_text': { en: 'The output text did not change.', ko: '출력된 글은 달라지지 않았습니다.' },
  'intervene.labels': { en: 'Labels', ko: '레이블' },
  'intervene.cosine': { en: 'Cosine similarity of the embeddings:', ko: '두 임베딩의 코사인 유사도:' },
  'intervene.norms': { en: 'Norm of the embedding:', ko: '임베딩의 노름:' },
  'intervene.channel': { en: 'Channel', ko: '채널' },
  'intervene.past': { en: 'past', ko: '과거' },
  'intervene.actual': { en: 'actual', ko: '실제값' },
  'intervene.time': { en: 'step', ko: '스텝' },
  'intervene.forecast_change': { en: 'Mean change in the forecast:', ko: '예측의 평균 변화:' },
  'intervene.mae': { en: 'mean absolute error', ko: '평균 절대 오차' },
  'intervene.token_changes': { en: 'Largest probability changes', ko: '확률이 가장 크게 달라진 토큰' },
  'intervene.token_changes_after': {
    en: 'Prediction after “{token}” (position {n}), given the same preceding tokens.',
    ko: '앞의 토큰이 같을 때 “{token}” ({n}번째 위치) 다음의 예측입니다.',
  },
  'intervene.token_changes_at_mask': {
    en: 'Prediction at “{token}” (position {n}).',
    ko: '“{token}” ({n}번째 위치)의 예측입니다.',
  },
  'intervene.kl_mask': { en: 'At the masked position:', ko: '마스킹된 위치:' },
  'intervene.kl': { en: 'Change in probabilities', ko: '확률 분포의 변화' },
  'intervene.kl_what': {
    en: 'KL divergence between the predictions before and after, in nats; 0 means no change.',
    ko: '변경 전과 후의 예측 사이의 KL 발산(nat)입니다. 0이면 변화가 없습니다.',
  },
  'intervene.kl_choose': {
    en: 'Select a position to see its tokens.',
    ko: '위치를 고르면 그 위치의 토큰을 보여 줍니다.',
  },
  'intervene.kl_last': { en: 'At the last position:', ko: '마지막 위치:' },
  'intervene.stream': { en: 'Change in the residual stream', ko: '잔차 스트림의 변화' },
  'intervene.stream_note': {
    en: 'Distance between the vectors before and after, relative to their norm, by layer and token. A change spreads from where it was made.',
    ko: '레이어와 토큰마다 변경 전후 벡터 사이의 거리를 노름으로 나눈 값입니다. 변화는 바꾼 곳에서부터 퍼져 나갑니다.',
  },
  'intervene.row.in': { en: '{layer} in', ko: '{layer} 입력' },
  'intervene.row.self': { en: '{layer} self-attn', ko: '{layer} 셀프 어텐션' },
  'intervene.row.cross': { en: '{layer} cross-attn', ko: '{layer} 크로스 어텐션' },
  'intervene.row.out': { en: '{layer} out', ko: '{layer} 출력' },
  'intervene.row.embed': { en: 'embedding', ko: '임베딩' },
  'intervene.attentions': { en: 'Attention before and after', ko: '변경 전후의 어텐션' },
  'intervene.attentions_note': {
    en: 'Turning off a head zeroes its output, not its attention weights. The weights of later layers change.',
    ko: '헤드를 끄면 출력이 0이 될 뿐 그 헤드의 어텐션 가중치는 그대로입니다. 그 뒤 레이어의 가중치가 달라집니다.',
  },
  'intervene.attention_same': {
    en: 'This attention did not change, because it is computed before the change takes effect. Select a later layer.',
    ko: '바꾼 곳보다 앞에서 계산되므로 이 어텐션은 그대로입니다. 더 뒤의 레이어를 골라 보세요.',
  },
  'intervene.of': { en: 'Attention', ko: '어텐션' },
} satisfies Messages;
