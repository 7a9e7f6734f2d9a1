import type { Messages } from '../lib/i18n.svelte';

export default {
  'tour.count': { en: 'Step {n} of {of}', ko: '{of}단계 중 {n}단계' },
  'tour.next': { en: 'Next', ko: '다음' },
  'tour.back': { en: 'Back', ko: '이전' },
  'tour.end': { en: 'End tour', ko: '그만 보기' },
  'tour.done': { en: 'Done', ko: '마치기' },

  'tour.input.title': { en: 'Something to read', ko: '입력' },
  'tour.input.text': {
    en: 'It begins with “{text}”.',
    ko: '“{text}”에서 시작합니다.',
  },
  'tour.input.text.yours': {
    en: 'Write your own at any time: everything on this page is worked out anew from what stands here, by the real model.',
    ko: '언제든 직접 써 보세요. 이 화면의 모든 값은 여기에 적힌 글을 실제 모델에 넣어 새로 계산한 것입니다.',
  },
  'tour.input.picture': {
    en: 'It begins with a picture.',
    ko: '그림에서 시작합니다.',
  },
  'tour.input.picture.yours': {
    en: 'Choose, drop or draw your own: everything on this page is worked out anew from it, by the real model.',
    ko: '파일을 고르거나 직접 그려 보세요. 이 화면의 모든 값은 그 그림을 실제 모델에 넣어 새로 계산한 것입니다.',
  },
  'tour.input.series': {
    en: 'It begins with {context} steps of a series.',
    ko: '시계열 {context}스텝에서 시작합니다.',
  },
  'tour.input.series.yours': {
    en: 'Give your own as a CSV file: everything on this page is worked out anew from it, by the real model.',
    ko: 'CSV 파일로 직접 넣어 보세요. 이 화면의 모든 값은 그 시계열을 실제 모델에 넣어 새로 계산한 것입니다.',
  },
  'tour.input.kept': {
    en: 'Everything on this page was worked out from it by the real model, and saved.',
    ko: '이 페이지에는 실제 모델이 이 입력으로 계산한 값이 저장되어 있습니다.',
  },
  'tour.tokens.title': { en: 'Cut into tokens', ko: '토큰으로 나누기' },
  'tour.tokens.text': {
    en: 'A model reads numbers, not letters. The text is cut into {tokens} tokens from a fixed vocabulary, and each has its number. Hover one to see the characters it covers.',
    ko: '모델은 글자가 아니라 숫자를 읽습니다. 글을 정해진 어휘의 토큰 {tokens}개로 나누고, 토큰마다 번호가 있습니다. 토큰에 마우스를 올리면 어느 글자에 해당하는지 보입니다.',
  },
  'tour.tokens.picture': {
    en: 'The picture is cut into {patches} patches of {patch} pixels. They are this model’s words, read from the top left to the bottom right.',
    ko: '그림을 {patch} 픽셀 패치 {patches}개로 자릅니다. 패치가 이 모델의 단어이며, 왼쪽 위에서 오른쪽 아래 순서로 읽습니다.',
  },
  'tour.tokens.series': {
    en: 'The curve is cut into {patches} overlapping patches of {patch} steps. They are this model’s words, and every channel is read by itself.',
    ko: '곡선을 {patch}스텝씩 서로 겹치는 패치 {patches}개로 자릅니다. 패치가 이 모델의 단어이며, 채널마다 따로 읽습니다.',
  },
  'tour.embedding.title': { en: 'Each token becomes a vector', ko: '토큰을 벡터로' },
  'tour.embedding.text': {
    en: 'The token’s number picks a row of a learned table: {d} numbers. Words used alike have vectors that point alike.',
    ko: '토큰 번호로 학습된 표에서 한 행을 꺼냅니다. 숫자 {d}개로 된 벡터입니다. 쓰임이 비슷한 단어는 벡터의 방향도 비슷합니다.',
  },
  'tour.embedding.picture': {
    en: 'Each patch’s pixels are multiplied by a learned matrix and become {d} numbers. A learned [CLS] vector goes in front, to gather what is needed for the answer.',
    ko: '패치의 픽셀에 학습된 행렬을 곱해 숫자 {d}개의 벡터로 만듭니다. 맨 앞에는 답에 필요한 정보를 모을 [CLS] 벡터를 붙입니다.',
  },
  'tour.embedding.picture_alone': {
    en: 'Each patch’s pixels are multiplied by a learned matrix and become {d} numbers.',
    ko: '패치의 픽셀에 학습된 행렬을 곱해 숫자 {d}개의 벡터로 만듭니다.',
  },
  'tour.embedding.series': {
    en: 'Each patch’s {patch} values, normalised, are multiplied by a learned matrix and become {d} numbers.',
    ko: '정규화한 패치의 값 {patch}개에 학습된 행렬을 곱해 숫자 {d}개의 벡터로 만듭니다.',
  },
  'tour.position.title': { en: 'Where it stands', ko: '위치 정보' },
  'tour.position.sinusoidal': {
    en: 'Attention by itself does not know the order. So waves of many lengths are added: each position gets its own pattern, and a shift is the same turn everywhere.',
    ko: '어텐션만으로는 순서를 알 수 없습니다. 그래서 파장이 다른 여러 사인·코사인 값을 더합니다. 위치마다 고유한 무늬가 생기고, 같은 거리만큼의 이동은 어디서나 같은 회전이 됩니다.',
  },
  'tour.position.learned': {
    en: 'Attention by itself does not know the order. So each position has its own learned vector, which is added to the token’s.',
    ko: '어텐션만으로는 순서를 알 수 없습니다. 그래서 위치마다 학습된 벡터를 토큰의 벡터에 더합니다.',
  },
  'tour.position.rotary': {
    en: 'Nothing is added here: queries and keys are turned by an angle that grows with the position, so their product depends only on how far apart they stand.',
    ko: '여기서는 더하는 것이 없습니다. 쿼리와 키를 위치에 비례하는 각도만큼 회전시켜, 둘의 내적이 서로 떨어진 거리에만 따라 달라지게 합니다.',
  },
  'tour.position.relative': {
    en: 'Nothing is added to the vectors: each head learns a bonus for every distance and adds it to the scores.',
    ko: '벡터에는 아무것도 더하지 않습니다. 헤드마다 거리별 편향을 학습해 점수에 더합니다.',
  },
  'tour.position.alibi': {
    en: 'Nothing is added to the vectors: the farther a key, the more is taken off its score, by a slope of each head’s own.',
    ko: '벡터에는 아무것도 더하지 않습니다. 키가 멀수록 점수를 더 깎으며, 그 기울기는 헤드마다 다릅니다.',
  },
  'tour.attention.title': { en: 'Scaled dot-product attention', ko: '스케일드 내적 어텐션' },
  'tour.attention': {
    en: 'Every token asks with a query (Q), every token answers with a key (K). Their products, scaled and soft-maxed, say how much of each value (V) to take. Point at a cell for its sum in numbers.',
    ko: '각 토큰은 쿼리(Q)로 묻고 모든 토큰은 키(K)로 답합니다. 둘의 내적을 스케일링해 소프트맥스를 취하면 각 값(V)을 얼마나 가져올지 정해집니다. 칸에 마우스를 올리면 계산 과정이 숫자로 보입니다.',
  },
  'tour.heads.title': { en: 'Many heads at once', ko: '멀티 헤드' },
  'tour.heads': {
    en: 'Each layer does this {heads} times side by side, with {head_dim} numbers a head, so that one head may follow order and another meaning. Here are all {all_heads}, with what each seems to do.',
    ko: '레이어마다 이 계산을 {heads}번 나란히 합니다. 헤드 하나는 숫자 {head_dim}개를 씁니다. 어떤 헤드는 순서를, 어떤 헤드는 의미를 따라갑니다. 헤드 {all_heads}개가 각각 하는 일로 보이는 것을 함께 표시했습니다.',
  },
  'tour.mask.title': { en: 'What may be looked at', ko: '마스크' },
  'tour.mask': {
    en: 'A token must not peek at what comes after it. Those scores are set to minus infinity, which the softmax turns into exactly zero: the empty triangle.',
    ko: '토큰은 자기 뒤에 오는 것을 미리 볼 수 없습니다. 그 점수를 음의 무한대로 바꾸면 소프트맥스를 거쳐 정확히 0이 됩니다. 비어 있는 삼각형이 그 부분입니다.',
  },
  'tour.mask.both': {
    en: 'Nothing is hidden here: this model reads in both directions, every place sees every other. Only padding, in batches, is masked.',
    ko: '여기서는 가리는 것이 없습니다. 이 모델은 양방향으로 읽으므로 모든 위치가 서로를 봅니다. 배치의 패딩만 가립니다.',
  },
  'tour.feed_forward.title': { en: 'Each token thinks for itself', ko: '피드포워드' },
  'tour.feed_forward': {
    en: 'After looking around, each vector goes alone through two layers: widened to {d_ff}, {activation}, back to {d}. Most units are quiet; the strongest are listed.',
    ko: '주변을 살핀 뒤에는 벡터마다 따로 선형 변환을 두 번 거칩니다. {d_ff}차원으로 넓혔다가 활성화 함수({activation})를 거쳐 다시 {d}차원으로 줄입니다. 대부분의 유닛은 조용하고, 가장 강한 유닛을 표시했습니다.',
  },
  'tour.feed_forward.gated': {
    en: 'After looking around, each vector goes alone through a gated layer: one projection to {d_ff}, after {activation}, opens and closes the other; then back to {d}.',
    ko: '주변을 살핀 뒤에는 벡터마다 따로 게이트가 있는 피드포워드를 거칩니다. {d_ff}차원으로 보낸 두 값 가운데 하나가 활성화 함수({activation})를 거쳐 다른 하나를 열고 닫은 다음, 다시 {d}차원으로 줄입니다.',
  },
  'tour.add_norm.title': { en: 'Add & norm', ko: '잔차 연결과 정규화' },
  'tour.add_norm.pre': {
    en: 'What a part finds is added to what was there: the residual stream. Before each part the vector is normalised ({norm}); the stream itself is left alone.',
    ko: '각 부분이 찾아낸 것을 원래 값에 더합니다. 이것이 잔차 흐름입니다. 벡터는 각 부분에 들어가기 전에 정규화하고({norm}), 잔차 흐름 자체는 그대로 둡니다.',
  },
  'tour.add_norm.post': {
    en: 'What a part finds is added to what was there, and the sum is normalised ({norm}), as in the original paper. So nothing is lost on the way, and nothing grows without end.',
    ko: '각 부분이 찾아낸 것을 원래 값에 더하고, 원 논문처럼 그 합을 정규화합니다({norm}). 덕분에 정보가 사라지지 않고 값이 끝없이 커지지도 않습니다.',
  },
  'tour.add_norm.parallel': {
    en: 'Attention and feed-forward both read the same normalised vector ({norm}), and both are added to the residual stream at once.',
    ko: '어텐션과 피드포워드가 정규화한 같은 벡터({norm})를 읽고, 둘의 결과를 한꺼번에 잔차 흐름에 더합니다.',
  },
  'tour.layers.title': { en: '{layers} layers of the same', ko: '같은 구조를 {layers}번' },
  'tour.layers.pre': {
    en: 'Norm, attention, add; norm, feed-forward, add: that is one layer, and {layers} of them stand on each other.',
    ko: '정규화, 어텐션, 잔차 합에 이어 다시 정규화, 피드포워드, 잔차 합까지가 한 레이어입니다. 이런 레이어 {layers}개를 쌓았습니다.',
  },
  'tour.layers.post': {
    en: 'Attention, add & norm, feed-forward, add & norm: that is one layer, and {layers} of them stand on each other.',
    ko: '어텐션, 잔차 합과 정규화, 피드포워드, 다시 잔차 합과 정규화가 한 레이어입니다. 이런 레이어 {layers}개를 쌓았습니다.',
  },
  'tour.layers.parallel': {
    en: 'Norm, then attention and feed-forward side by side, then one sum: that is one layer, and {layers} of them stand on each other.',
    ko: '정규화한 뒤 어텐션과 피드포워드를 나란히 계산하고 한꺼번에 더하는 것까지가 한 레이어입니다. 이런 레이어 {layers}개를 쌓았습니다.',
  },
  'tour.layers.decoder': {
    en: 'The decoder’s layers, {decoder_layers} of them, have cross-attention as well.',
    ko: '디코더는 레이어가 {decoder_layers}개이고, 레이어마다 크로스 어텐션이 하나 더 있습니다.',
  },
  'tour.layers.stream': {
    en: 'The line running through is the residual stream. Choose any part to open it.',
    ko: '가운데를 지나는 선이 잔차 흐름입니다. 어느 부분이든 눌러서 열어 볼 수 있습니다.',
  },
  'tour.cross.title': { en: 'The decoder looks back', ko: '디코더가 되돌아보기' },
  'tour.cross': {
    en: 'The decoder writes “{answer}”. At each token its queries meet the encoder’s keys and values: cross-attention. Follow a line to see which part of the source a token came from.',
    ko: '디코더가 “{answer}”라고 씁니다. 토큰마다 디코더의 쿼리가 인코더의 키, 값과 만납니다. 이것이 크로스 어텐션입니다. 선을 따라가면 각 토큰이 원문의 어디에서 왔는지 보입니다.',
  },
  'tour.head.title': { en: 'The answer', ko: '출력' },
  'tour.head.translate': {
    en: 'The last vector is multiplied into one score for each of {vocab} tokens, and the softmax makes them probabilities. Change temperature, top-k and top-p and watch the bars.',
    ko: '마지막 벡터에 행렬을 곱해 토큰 {vocab}개의 로짓을 얻고, 소프트맥스로 확률을 만듭니다. 온도, top-k, top-p를 바꾸며 막대의 변화를 살펴보세요.',
  },
  'tour.head.generate': {
    en: 'The last vector is multiplied into one score for each of {vocab} tokens, and the softmax makes them probabilities of the next one. Change temperature, top-k and top-p and watch the bars.',
    ko: '마지막 벡터에 행렬을 곱해 토큰 {vocab}개의 로짓을 얻고, 소프트맥스로 다음 토큰의 확률을 만듭니다. 온도, top-k, top-p를 바꾸며 막대의 변화를 살펴보세요.',
  },
  'tour.head.fill': {
    en: 'At the gap the last vector becomes one score for each of {vocab} tokens. The likeliest here: “{answer}”. It was found by looking both ways.',
    ko: '빈칸 자리의 마지막 벡터로 토큰 {vocab}개의 로짓을 얻습니다. 가장 가능성이 높은 단어는 “{answer}”입니다. 앞뒤를 모두 보고 찾은 답입니다.',
  },
  'tour.head.embed': {
    en: 'All last vectors are pooled into one: {d} numbers for the whole input. Inputs that mean alike come to point alike.',
    ko: '마지막 벡터들을 하나로 모아 입력 전체를 숫자 {d}개로 나타냅니다. 뜻이 비슷하면 방향도 비슷합니다.',
  },
  'tour.head.embed.two': { en: 'Compare two to see it.', ko: '두 입력을 비교해 보세요.' },
  'tour.head.classify': {
    en: 'One vector stands for the whole text and becomes a score for each of {labels} labels. This one comes to “{answer}” with {sure}.',
    ko: '글 전체를 나타내는 벡터 하나로 레이블 {labels}개의 점수를 얻습니다. 이 글의 결과는 “{answer}”이고 확률은 {sure}입니다.',
  },
  'tour.head.image': {
    en: 'One vector stands for the whole picture and becomes a score for each of {labels} classes. This one comes to “{answer}” with {sure}.',
    ko: '그림 전체를 나타내는 벡터 하나로 클래스 {labels}개의 점수를 얻습니다. 이 그림의 결과는 “{answer}”이고 확률은 {sure}입니다.',
  },
  'tour.head.answer': {
    en: 'Each token gets two scores: to be the first of the answer, and to be the last. The best pair is “{answer}”.',
    ko: '토큰마다 답의 시작일 점수와 끝일 점수를 얻습니다. 가장 좋은 쌍은 “{answer}”입니다.',
  },
  'tour.head.forecast': {
    en: 'The last vectors of all patches are laid side by side and multiplied into the next {horizon} steps, then brought back to the series’ own units.',
    ko: '모든 패치의 마지막 벡터를 이어 붙이고 행렬을 곱해 다음 {horizon}스텝을 얻은 뒤, 원래 시계열의 단위로 되돌립니다.',
  },
  'tour.decoding.title': { en: 'One word at a time', ko: '한 단어씩 쓰기' },
  'tour.decoding.translate': {
    en: 'A token is written, fed back in, and the decoder runs again, until it writes its end token. With beams several texts grow side by side in this way, and the best of them is shown.',
    ko: '토큰을 쓰고 그것을 다시 입력으로 넣어 종료 토큰이 나올 때까지 반복합니다. 빔이 여럿이면 여러 글을 나란히 이렇게 써 나가고, 그중 점수가 가장 높은 글을 보여 줍니다.',
  },
  'tour.decoding.generate': {
    en: 'A token is chosen, fed back in, and the model runs again.',
    ko: '토큰을 하나 골라 다시 입력으로 넣고 모델을 또 실행합니다.',
  },
  'tour.decoding.choose': {
    en: 'Play it, step through it, or choose another word and see where it leads.',
    ko: '재생하거나 한 단계씩 넘겨 보고, 다른 단어를 골라 어떻게 이어지는지도 살펴보세요.',
  },
  'tour.decoding.kept': { en: 'Play it, or step through it.', ko: '재생하거나 한 단계씩 넘겨 보세요.' },
  'tour.change.title': { en: 'Change it', ko: '바꿔 보기' },
  'tour.change': {
    en: 'Does a head matter? Switch it off. Hide a token, swap two, skip a layer: before and after stand side by side.',
    ko: '이 헤드가 정말 중요할까요? 꺼 보면 압니다. 토큰을 가리거나, 두 토큰을 맞바꾸거나, 레이어를 건너뛰어 보세요. 전후를 나란히 비교할 수 있습니다.',
  },
  'tour.shapes.title': { en: 'Three shapes, the same parts', ko: '같은 부품, 세 가지 구조' },
  'tour.shapes.encoder-decoder': {
    en: 'This was an encoder-decoder: one stack reads, one writes. Keep only the encoder and you have BERT or ViT, which understand; keep only the decoder and you have GPT, which goes on writing.',
    ko: '지금까지 본 것은 인코더-디코더입니다. 한쪽이 읽고 한쪽이 씁니다. 인코더만 남기면 이해하는 모델인 BERT나 ViT가 되고, 디코더만 남기면 이어 쓰는 모델인 GPT가 됩니다.',
  },
  'tour.shapes.encoder-only': {
    en: 'This was an encoder: it reads all at once and understands. With a causal mask the same parts are a decoder, which goes on writing, like GPT; both together, joined by cross-attention, translate.',
    ko: '지금까지 본 것은 인코더입니다. 한꺼번에 읽고 이해합니다. 같은 부품에 인과 마스크를 더하면 GPT처럼 이어 쓰는 디코더가 되고, 둘을 크로스 어텐션으로 이으면 번역을 합니다.',
  },
  'tour.shapes.decoder-only': {
    en: 'This was a decoder: it reads from the left and goes on writing. Without the causal mask the same parts are an encoder, which understands, like BERT; both together, joined by cross-attention, translate.',
    ko: '지금까지 본 것은 디코더입니다. 왼쪽부터 읽으며 이어 씁니다. 인과 마스크가 없으면 같은 부품이 BERT처럼 이해하는 인코더가 되고, 둘을 크로스 어텐션으로 이으면 번역을 합니다.',
  },
  'tour.shapes.open': { en: 'Open another model to see it.', ko: '다른 모델도 열어 보세요.' },
} satisfies Messages;
