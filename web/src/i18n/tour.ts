import type { Messages } from '../lib/i18n.svelte';

export default {
  'tour.count': { en: 'Step {n} of {of}', ko: '{of}단계 중 {n}단계' },
  'tour.next': { en: 'Next', ko: '다음' },
  'tour.back': { en: 'Back', ko: '이전' },
  'tour.end': { en: 'End tour', ko: '그만 보기' },
  'tour.done': { en: 'Done', ko: '마치기' },

  'tour.input.title': { en: 'The input', ko: '입력' },
  'tour.input.text': { en: '“{text}” is the input.', ko: '입력은 “{text}”입니다.' },
  'tour.input.text.yours': {
    en: 'Type your own text at any time. Every number on this page is recomputed from your text by the real model.',
    ko: '언제든 직접 써 보세요. 이 화면의 모든 값은 입력한 글을 실제 모델에 넣어 다시 계산한 것입니다.',
  },
  'tour.input.picture': { en: 'The input is an image.', ko: '입력은 이미지입니다.' },
  'tour.input.picture.yours': {
    en: 'Choose, drop or draw your own image at any time. Every number on this page is recomputed from your image by the real model.',
    ko: '언제든 파일을 고르거나 직접 그려 보세요. 이 화면의 모든 값은 그 이미지를 실제 모델에 넣어 다시 계산한 것입니다.',
  },
  'tour.input.question': {
    en: 'The input is an image and the question “{text}”',
    ko: '입력은 이미지와 질문 “{text}”입니다.',
  },
  'tour.input.question.yours': {
    en: 'Ask about your own image at any time. Every number on this page is recomputed from your image and question by the real model.',
    ko: '언제든 이미지를 바꾸거나 다른 질문을 해 보세요. 이 화면의 모든 값은 그 이미지와 질문을 실제 모델에 넣어 다시 계산한 것입니다.',
  },
  'tour.input.series': { en: 'The input is a series of {context} steps.', ko: '입력은 {context}스텝의 시계열입니다.' },
  'tour.input.series.yours': {
    en: 'Load your own series as a CSV file at any time. Every number on this page is recomputed from your series by the real model.',
    ko: '언제든 CSV 파일로 직접 넣어 보세요. 이 화면의 모든 값은 그 시계열을 실제 모델에 넣어 다시 계산한 것입니다.',
  },
  'tour.input.static': {
    en: 'Every number on this page was computed from it by the real model and saved.',
    ko: '이 페이지에는 실제 모델이 이 입력으로 계산한 값이 저장되어 있습니다.',
  },
  'tour.tokens.title': { en: 'Tokenization', ko: '토큰화' },
  'tour.tokens.text': {
    en: 'A model works with numbers, not letters. The tokenizer splits the text into {tokens} tokens from a fixed vocabulary, each with an id. Hover over a token to see the characters it covers.',
    ko: '모델은 글자가 아니라 숫자를 다룹니다. 토크나이저가 글을 정해진 어휘의 토큰 {tokens}개로 나누고, 토큰마다 ID가 있습니다. 토큰에 마우스를 올리면 어느 글자에 해당하는지 보입니다.',
  },
  'tour.tokens.picture': {
    en: 'The image is split into {patches} patches of {patch} pixels. They are the model’s tokens, ordered from top left to bottom right.',
    ko: '이미지를 {patch} 픽셀 패치 {patches}개로 나눕니다. 패치가 이 모델의 토큰이며, 왼쪽 위에서 오른쪽 아래 순서입니다.',
  },
  'tour.tokens.question': {
    en: 'The tokenizer splits the question into {words} tokens, and the image is split into {patches} patches of {patch} pixels. Words and patches form one sequence.',
    ko: '토크나이저가 질문을 토큰 {words}개로 나누고, 이미지는 {patch} 픽셀 패치 {patches}개로 나눕니다. 단어와 패치가 한 시퀀스를 이룹니다.',
  },
  'tour.tokens.series': {
    en: 'The series is split into {patches} overlapping patches of {patch} steps. They are the model’s tokens. Each channel is processed separately.',
    ko: '시계열을 {patch}스텝씩 서로 겹치는 패치 {patches}개로 나눕니다. 패치가 이 모델의 토큰이며, 채널마다 따로 처리합니다.',
  },
  'tour.embedding.title': { en: 'Embedding', ko: '임베딩' },
  'tour.embedding.text': {
    en: 'The token id selects a row of a learned table: a vector of {d} numbers. Similar tokens get similar vectors.',
    ko: '토큰 ID로 학습된 표에서 한 행을 꺼냅니다. 숫자 {d}개로 된 벡터입니다. 비슷한 토큰은 벡터도 비슷합니다.',
  },
  'tour.embedding.picture': {
    en: 'A learned matrix projects the pixels of each patch to a vector of {d} numbers. A learned [CLS] vector is placed in front to collect the information for the classification.',
    ko: '학습된 행렬이 패치의 픽셀을 숫자 {d}개의 벡터로 투영합니다. 맨 앞에는 분류에 필요한 정보를 모을 [CLS] 벡터를 붙입니다.',
  },
  'tour.embedding.question': {
    en: 'A token id selects a row of a learned table, and a learned matrix projects the pixels of a patch: both become vectors of {d} numbers. Another learned vector marks them as words or as parts of the image.',
    ko: '토큰 ID로는 학습된 표에서 한 행을 꺼내고, 패치의 픽셀은 학습된 행렬로 투영합니다. 둘 다 숫자 {d}개의 벡터가 됩니다. 여기에 단어인지 이미지인지를 나타내는 학습된 벡터를 더합니다.',
  },
  'tour.embedding.picture_alone': {
    en: 'A learned matrix projects the pixels of each patch to a vector of {d} numbers.',
    ko: '학습된 행렬이 패치의 픽셀을 숫자 {d}개의 벡터로 투영합니다.',
  },
  'tour.embedding.series': {
    en: 'A learned matrix projects the {patch} normalized values of each patch to a vector of {d} numbers.',
    ko: '학습된 행렬이 정규화한 패치의 값 {patch}개를 숫자 {d}개의 벡터로 투영합니다.',
  },
  'tour.position.title': { en: 'Positional encoding', ko: '위치 인코딩' },
  'tour.position.sinusoidal': {
    en: 'Attention on its own ignores the order of tokens. So sines and cosines of different wavelengths are added to the embeddings, which gives every position a unique pattern.',
    ko: '어텐션만으로는 토큰의 순서를 알 수 없습니다. 그래서 파장이 서로 다른 사인·코사인 값을 임베딩에 더해 위치마다 고유한 패턴을 만듭니다.',
  },
  'tour.position.learned': {
    en: 'Attention on its own ignores the order of tokens. So each position has a learned vector, which is added to the token embedding.',
    ko: '어텐션만으로는 토큰의 순서를 알 수 없습니다. 그래서 위치마다 학습된 벡터를 토큰 임베딩에 더합니다.',
  },
  'tour.position.rotary': {
    en: 'Rotary embeddings (RoPE) rotate queries and keys by an angle proportional to their position. Their dot product then depends on the positions only through the distance between the tokens.',
    ko: '회전 위치 임베딩(RoPE)은 쿼리와 키를 위치에 비례하는 각도만큼 회전시킵니다. 그러면 둘의 내적은 위치 자체가 아니라 토큰 사이의 거리에만 영향을 받습니다.',
  },
  'tour.position.relative': {
    en: 'Nothing is added to the embeddings. Each head learns a bias for every distance and adds it to the attention scores.',
    ko: '임베딩에는 아무것도 더하지 않습니다. 헤드마다 거리별 편향을 학습해 어텐션 점수에 더합니다.',
  },
  'tour.position.alibi': {
    en: 'Nothing is added to the embeddings. ALiBi lowers the attention score of distant keys, with a different slope for each head.',
    ko: '임베딩에는 아무것도 더하지 않습니다. ALiBi는 먼 키일수록 어텐션 점수를 낮추며, 기울기는 헤드마다 다릅니다.',
  },
  'tour.attention.title': { en: 'Scaled dot-product attention', ko: '스케일드 내적 어텐션' },
  'tour.attention': {
    en: 'Every token has a query (Q), a key (K) and a value (V). The scaled dot products of queries and keys go through a softmax and give the weights for summing the values. Hover over a cell to see its calculation.',
    ko: '토큰마다 쿼리(Q), 키(K), 값(V)이 있습니다. 쿼리와 키의 내적을 스케일링해 소프트맥스를 취하면 값을 더할 때의 가중치가 됩니다. 칸에 마우스를 올리면 계산 과정이 보입니다.',
  },
  'tour.heads.title': { en: 'Multi-head attention', ko: '멀티 헤드 어텐션' },
  'tour.heads': {
    en: 'Each layer has {heads} heads of dimension {head_dim}, which compute attention in parallel. Different heads can follow different relations, such as word order or meaning. Here are all {all_heads} with their roles.',
    ko: '레이어마다 {head_dim}차원 헤드 {heads}개가 병렬로 어텐션을 계산합니다. 헤드마다 어순이나 의미처럼 서로 다른 관계를 따라갈 수 있습니다. 헤드 {all_heads}개를 역할과 함께 표시했습니다.',
  },
  'tour.mask.title': { en: 'Masking', ko: '마스킹' },
  'tour.mask': {
    en: 'A token may not attend to later tokens. Their scores are set to −∞, which the softmax turns into exactly 0: the empty triangle.',
    ko: '토큰은 자기 뒤의 토큰을 참조할 수 없습니다. 그 점수를 −∞로 바꾸면 소프트맥스를 거쳐 정확히 0이 됩니다. 비어 있는 삼각형이 그 부분입니다.',
  },
  'tour.mask.both': {
    en: 'Nothing is masked here. This model is bidirectional: every token attends to all tokens. Only padding in batches is masked.',
    ko: '여기서는 마스킹하는 것이 없습니다. 이 모델은 양방향이므로 모든 토큰이 서로를 참조합니다. 배치의 패딩만 마스킹합니다.',
  },
  'tour.feed_forward.title': { en: 'Feed-forward network', ko: '피드포워드' },
  'tour.feed_forward': {
    en: 'After attention, each vector passes separately through two linear layers: up to {d_ff} dimensions, {activation}, and back to {d}. Most units are nearly inactive; the most active ones are listed.',
    ko: '어텐션 다음에는 벡터마다 따로 선형 레이어 두 개를 거칩니다. {d_ff}차원으로 넓혔다가 활성화 함수({activation})를 거쳐 다시 {d}차원으로 줄입니다. 대부분의 유닛은 거의 활성화되지 않으며, 가장 활성화된 유닛을 표시했습니다.',
  },
  'tour.feed_forward.gated': {
    en: 'After attention, each vector passes separately through a gated feed-forward network: two projections to {d_ff} dimensions, one of them through {activation}, are multiplied and projected back to {d}.',
    ko: '어텐션 다음에는 벡터마다 따로 게이트가 있는 피드포워드를 거칩니다. {d_ff}차원으로 투영한 두 값 가운데 하나에 활성화 함수({activation})를 적용해 서로 곱한 다음, 다시 {d}차원으로 줄입니다.',
  },
  'tour.add_norm.title': { en: 'Residual connection and normalization', ko: '잔차 연결과 정규화' },
  'tour.add_norm.pre': {
    en: 'The output of each sublayer is added to its input. This running sum is the residual stream. The input of each sublayer is normalized ({norm}), the stream itself is not.',
    ko: '각 서브레이어의 출력을 입력에 더합니다. 이렇게 쌓이는 합이 잔차 스트림입니다. 서브레이어의 입력은 정규화하지만({norm}), 잔차 스트림 자체는 정규화하지 않습니다.',
  },
  'tour.add_norm.res_post': {
    en: 'The output of each sublayer is normalized, then added to its input (res-post-norm).',
    ko: '서브레이어의 출력을 정규화한 다음 입력에 더합니다(res-post-norm).',
  },
  'tour.add_norm.post': {
    en: 'The output of each sublayer is added to its input, and the sum is normalized ({norm}), as in the original paper. The residual connection preserves information, and the norm keeps the values from growing.',
    ko: '각 서브레이어의 출력을 입력에 더하고, 원 논문처럼 그 합을 정규화합니다({norm}). 잔차 연결 덕분에 정보가 유지되고, 정규화 덕분에 값이 계속 커지지 않습니다.',
  },
  'tour.add_norm.parallel': {
    en: 'Attention and the feed-forward network read the same normalized vector ({norm}), and both outputs are added to the residual stream.',
    ko: '어텐션과 피드포워드가 정규화한 같은 벡터({norm})를 읽고, 두 출력을 모두 잔차 스트림에 더합니다.',
  },
  'tour.layers.title': { en: '{layers} identical layers', ko: '같은 구조의 레이어 {layers}개' },
  'tour.layers.pre': {
    en: 'Norm, attention, add; norm, feed-forward, add: this is one layer. The model stacks {layers} of them.',
    ko: '정규화, 어텐션, 잔차 합에 이어 다시 정규화, 피드포워드, 잔차 합까지가 한 레이어입니다. 이런 레이어 {layers}개를 쌓았습니다.',
  },
  'tour.layers.res_post': {
    en: 'Every layer has the same structure: attention, normalization and addition, then a feed-forward network, normalization and addition.',
    ko: '모든 레이어의 구조는 같습니다. 어텐션, 정규화, 잔차 합, 그리고 피드포워드, 정규화, 잔차 합입니다.',
  },
  'tour.layers.post': {
    en: 'Attention, add & norm, feed-forward, add & norm: this is one layer. The model stacks {layers} of them.',
    ko: '어텐션, 잔차 합과 정규화, 피드포워드, 다시 잔차 합과 정규화가 한 레이어입니다. 이런 레이어 {layers}개를 쌓았습니다.',
  },
  'tour.layers.parallel': {
    en: 'Norm, attention and feed-forward in parallel, add: this is one layer. The model stacks {layers} of them.',
    ko: '정규화한 뒤 어텐션과 피드포워드를 나란히 계산하고 한꺼번에 더하는 것까지가 한 레이어입니다. 이런 레이어 {layers}개를 쌓았습니다.',
  },
  'tour.layers.decoder': {
    en: 'The {decoder_layers} layers of the decoder also have cross-attention.',
    ko: '디코더는 레이어가 {decoder_layers}개이고, 레이어마다 크로스 어텐션이 하나 더 있습니다.',
  },
  'tour.layers.stream': {
    en: 'The line through the layers is the residual stream. Click any part to open it.',
    ko: '레이어를 관통하는 선이 잔차 스트림입니다. 어느 부분이든 눌러서 열어 볼 수 있습니다.',
  },
  'tour.cross.title': { en: 'Cross-attention', ko: '크로스 어텐션' },
  'tour.cross': {
    en: 'The decoder has generated “{answer}” token by token. For each token, its queries attend to the encoder’s keys and values: this is cross-attention. Follow the ribbons to see which source words each token attended to.',
    ko: '디코더가 “{answer}”를 생성합니다. 토큰마다 디코더의 쿼리가 인코더의 키와 값을 참조합니다. 이것이 크로스 어텐션입니다. 띠를 따라가면 각 토큰이 원문의 어느 단어를 참조했는지 보입니다.',
  },
  'tour.cross.detect': {
    en: 'The decoder has one vector for each object query. Its queries attend to the encoder’s keys and values, which belong to patches of the image: this is cross-attention. Choose another object query to see which patches it reads.',
    ko: '디코더에는 물체 쿼리마다 벡터가 하나씩 있습니다. 그 쿼리가 이미지 패치에서 온 인코더의 키와 값을 참조합니다. 이것이 크로스 어텐션입니다. 다른 물체 쿼리를 고르면 어느 패치를 읽는지 볼 수 있습니다.',
  },
  'tour.cross.caption': {
    en: 'The decoder has generated “{answer}” token by token. For each token, its queries attend to the encoder’s keys and values, which belong to patches of the image: this is cross-attention. Choose a token to see which patches it attended to.',
    ko: '디코더가 “{answer}”를 한 토큰씩 생성합니다. 토큰마다 디코더의 쿼리가 이미지 패치에서 온 인코더의 키와 값을 참조합니다. 이것이 크로스 어텐션입니다. 토큰을 고르면 어느 패치를 참조했는지 볼 수 있습니다.',
  },
  'tour.head.title': { en: 'The output', ko: '출력' },
  'tour.head.translate': {
    en: 'The final-layer vector is projected to a logit for each of {vocab} tokens, and softmax turns the logits into probabilities. Change temperature, top-k and top-p to see the effect.',
    ko: '마지막 레이어의 벡터에 행렬을 곱해 토큰 {vocab}개의 로짓을 얻고, 소프트맥스로 확률을 만듭니다. 온도, top-k, top-p를 바꾸며 막대의 변화를 살펴보세요.',
  },
  'tour.head.generate': {
    en: 'The final-layer vector is projected to a logit for each of {vocab} tokens, and softmax turns the logits into probabilities for the next token. Change temperature, top-k and top-p to see the effect.',
    ko: '마지막 레이어의 벡터에 행렬을 곱해 토큰 {vocab}개의 로짓을 얻고, 소프트맥스로 다음 토큰의 확률을 만듭니다. 온도, top-k, top-p를 바꾸며 막대의 변화를 살펴보세요.',
  },
  'tour.head.fill': {
    en: 'At the mask, the final-layer vector is projected to a logit for each of {vocab} tokens. The prediction is “{answer}”, based on the context on both sides.',
    ko: '마스크 위치의 마지막 레이어 벡터로 토큰 {vocab}개의 로짓을 얻습니다. 예측한 토큰은 “{answer}”입니다. 앞뒤 문맥을 모두 참고한 결과입니다.',
  },
  'tour.head.detect': {
    en: 'Each object query predicts a class, or “no object”, and a box. Lower the threshold to see the boxes of all queries, and move the layer slider to watch them settle.',
    ko: '물체 쿼리마다 클래스(또는 “물체 없음”)와 상자를 예측합니다. 임곗값을 낮추면 모든 쿼리의 상자를, 레이어를 옮기면 상자가 자리를 잡는 과정을 볼 수 있습니다.',
  },
  'tour.head.similarity': {
    en: 'Each encoder ends in one vector. The cosine of the two vectors tells how well the image and the text match.',
    ko: '두 인코더는 각각 벡터 하나를 내놓습니다. 두 벡터의 코사인으로 이미지와 텍스트가 얼마나 맞는지 알 수 있습니다.',
  },
  'tour.head.embed': {
    en: 'The final-layer vectors are pooled into one embedding of {d} numbers for the whole input. Inputs with similar meanings get similar embeddings.',
    ko: '마지막 레이어의 벡터들을 풀링해 입력 전체를 숫자 {d}개의 임베딩으로 나타냅니다. 뜻이 비슷한 입력은 임베딩도 비슷합니다.',
  },
  'tour.head.embed.two': { en: 'Compare two inputs to see this.', ko: '두 입력을 비교해 보세요.' },
  'tour.head.classify': {
    en: 'One vector for the whole text is projected to a logit for each of {labels} labels. The prediction is “{answer}” with a probability of {sure}.',
    ko: '글 전체를 나타내는 벡터 하나로 레이블 {labels}개의 로짓을 얻습니다. 예측은 “{answer}”이고 확률은 {sure}입니다.',
  },
  'tour.head.image': {
    en: 'One vector for the whole image is projected to a logit for each of {labels} classes. The prediction is “{answer}” with a probability of {sure}.',
    ko: '이미지 전체를 나타내는 벡터 하나로 클래스 {labels}개의 로짓을 얻습니다. 예측은 “{answer}”이고 확률은 {sure}입니다.',
  },
  'tour.head.ask': {
    en: 'The vector of the first word is projected to a logit for each of {labels} answers. The prediction is “{answer}” with a probability of {sure}.',
    ko: '첫 단어의 벡터로 답 후보 {labels}개의 로짓을 얻습니다. 예측은 “{answer}”이고 확률은 {sure}입니다.',
  },
  'tour.head.answer': {
    en: 'Each token gets two scores: one for the start of the answer, one for its end. “{answer}” has the highest total.',
    ko: '토큰마다 답의 시작 점수와 끝 점수를 얻습니다. 가장 좋은 쌍은 “{answer}”입니다.',
  },
  'tour.head.forecast': {
    en: 'The final-layer vectors of all patches are concatenated, projected to the next {horizon} steps, and rescaled to the units of the series.',
    ko: '모든 패치의 마지막 레이어 벡터를 이어 붙이고 행렬을 곱해 다음 {horizon}스텝을 얻은 뒤, 원래 시계열의 단위로 되돌립니다.',
  },
  'tour.decoding.title': { en: 'Autoregressive decoding', ko: '자기회귀 디코딩' },
  'tour.decoding.translate': {
    en: 'The decoder predicts a token, the token is added to its input, and the decoder runs again until it predicts the end token. Beam search extends several candidates in parallel and returns the best one.',
    ko: '디코더가 토큰을 예측하면 그 토큰을 입력에 더해 다시 실행하고, 종료 토큰이 나올 때까지 반복합니다. 빔 서치는 여러 후보를 나란히 이어 가다가 점수가 가장 높은 것을 돌려줍니다.',
  },
  'tour.decoding.generate': {
    en: 'The model predicts a token, the token is added to its input, and the model runs again.',
    ko: '모델이 토큰을 예측하면 그 토큰을 입력에 더해 다시 실행합니다.',
  },
  'tour.decoding.choose': {
    en: 'Play it, step through it, or choose another token and see how the text continues.',
    ko: '재생하거나 한 단계씩 넘겨 보고, 다른 토큰을 골라 글이 어떻게 이어지는지도 살펴보세요.',
  },
  'tour.decoding.static': { en: 'Play it or step through it.', ko: '재생하거나 한 단계씩 넘겨 보세요.' },
  'tour.change.title': { en: 'Interventions', ko: '바꿔 보기' },
  'tour.change': {
    en: 'Does a head matter? Turn it off. Mask a token, swap two tokens or skip a layer, and compare the model before and after.',
    ko: '이 헤드가 정말 중요할까요? 꺼 보면 알 수 있습니다. 토큰을 마스킹하거나, 두 토큰을 맞바꾸거나, 레이어를 건너뛰고 전후를 비교해 보세요.',
  },
  'tour.shapes.title': { en: 'Three architectures, the same parts', ko: '같은 부품, 세 가지 구조' },
  'tour.shapes.encoder-decoder': {
    en: 'This model is an encoder-decoder, as in the original Transformer. Encoder-only models such as BERT and ViT turn the input into vectors. Decoder-only models such as GPT generate text.',
    ko: '이 모델은 원래의 트랜스포머와 같은 인코더-디코더입니다. BERT나 ViT 같은 인코더 모델은 입력을 벡터로 바꾸고, GPT 같은 디코더 모델은 글을 생성합니다.',
  },
  'tour.shapes.two-tower': {
    en: 'This model has two encoders, one for images and one for texts. They were trained together, so that an image and its description get similar vectors.',
    ko: '이 모델은 이미지용과 텍스트용, 두 인코더로 이루어집니다. 이미지와 그 설명이 비슷한 벡터가 되도록 함께 학습했습니다.',
  },
  'tour.shapes.encoder-only': {
    en: 'This model is an encoder: it reads the whole input at once. With a causal mask, the same parts form a decoder such as GPT, which generates text. An encoder and a decoder joined by cross-attention can translate.',
    ko: '이 모델은 인코더입니다. 입력 전체를 한꺼번에 읽습니다. 같은 부품에 인과 마스크를 더하면 GPT처럼 글을 생성하는 디코더가 되고, 인코더와 디코더를 크로스 어텐션으로 이으면 번역할 수 있습니다.',
  },
  'tour.shapes.decoder-only': {
    en: 'This model is a decoder: it reads from left to right and generates text. Without the causal mask, the same parts form an encoder such as BERT. An encoder and a decoder joined by cross-attention can translate.',
    ko: '이 모델은 디코더입니다. 왼쪽부터 읽으며 글을 생성합니다. 인과 마스크가 없으면 같은 부품이 BERT 같은 인코더가 되고, 인코더와 디코더를 크로스 어텐션으로 이으면 번역할 수 있습니다.',
  },
  'tour.shapes.open': { en: 'Open another model to compare.', ko: '다른 모델도 열어 보세요.' },
} satisfies Messages;
