import type { Messages } from '../lib/i18n.svelte';

export default {
  'patch_attention.layer': { en: 'Layer', ko: '레이어' },
  'patch_attention.layer_n': { en: 'Layer {n}', ko: '레이어 {n}' },
  'patch_attention.roll': { en: 'All layers (attention rollout)', ko: '전체 레이어 (어텐션 롤아웃)' },
  'patch_attention.head': { en: 'Head', ko: '헤드' },
  'patch_attention.head_n': { en: 'Head {n}', ko: '헤드 {n}' },
  'patch_attention.mean': { en: 'Mean of all heads', ko: '모든 헤드의 평균' },
  'patch_attention.roll_note': {
    en: 'Attention rollout multiplies the attention matrices of all layers. Each layer’s matrix is the mean of its heads, averaged with the identity to account for the residual connection.',
    ko: '어텐션 롤아웃은 모든 레이어의 어텐션 행렬을 곱합니다. 레이어마다 헤드의 평균을 쓰고, 잔차 연결을 반영하기 위해 항등 행렬과 평균을 냅니다.',
  },

  'image.title': { en: 'Attention of a patch', ko: '패치의 어텐션' },
  'image.note': {
    en: 'The model splits the image into {count} patches of {high} × {wide} pixels. Select one to see which patches it attends to. The darkest color is its highest weight, but at least three times uniform attention.',
    ko: '모델은 이미지를 {high} × {wide} 픽셀 패치 {count}개로 나눕니다. 패치를 고르면 그 패치가 참조하는 곳이 칠해집니다. 가장 짙은 색은 가중치의 최댓값이며, 적어도 균등할 때의 세 배에 해당합니다.',
  },
  'image.slider': { en: 'Selected patch; use the arrow keys to move', ko: '선택한 패치 (방향키로 이동)' },
  'image.patch': { en: 'Patch in row {row}, column {column}', ko: '{row}행 {column}열 패치' },
  'image.from': { en: 'Query', ko: '쿼리' },
  'image.a_patch': { en: 'a patch', ko: '패치 하나' },
  'image.on_itself': { en: 'itself', ko: '자기 자신' },
  'image.on_prefix': { en: '{token}', ko: '{token}' },
  'image.on_patches': { en: 'patches', ko: '패치' },
  'image.strongest': { en: 'highest weight: row {row}, column {column}', ko: '최댓값: {row}행 {column}열' },
  'image.shares': { en: 'Attention distribution', ko: '어텐션 분포' },
  'image.heads': { en: 'All layers and heads for this query', ko: '이 쿼리에 대한 모든 레이어와 헤드' },
  'image.heads_note': {
    en: 'Each thumbnail is one head with its own color scale. Click one to enlarge it.',
    ko: '그림 하나가 헤드 하나이며, 색의 범위는 헤드마다 다릅니다. 누르면 크게 볼 수 있습니다.',
  },
  'image.classes': { en: 'Predicted classes', ko: '예측한 클래스' },
  'image.classes_note': {
    en: 'The most likely classes and their probabilities.',
    ko: '확률이 높은 클래스 순서입니다.',
  },

  'upload.picture': { en: 'Input image', ko: '입력 이미지' },
  'upload.file': { en: 'Choose an image', ko: '이미지 파일 선택' },
  'upload.drop': { en: 'or drop or paste one', ko: '끌어다 놓거나 붙여 넣어도 됩니다' },
  'upload.draw': { en: 'Draw', ko: '직접 그리기' },
  'upload.example': { en: 'Example', ko: '예시' },
  'upload.pad': {
    en: 'Drawing area: draw with the mouse or a finger, or choose a digit',
    ko: '그림판: 마우스나 손가락으로 그리거나 옆의 숫자를 고르세요',
  },
  'upload.ready_digits': { en: 'Or choose a digit', ko: '숫자 고르기' },
  'upload.digit': { en: 'Draw the digit {n}', ko: '숫자 {n} 그리기' },
  'upload.clear': { en: 'Clear', ko: '지우기' },
  'upload.read': { en: 'Run', ko: '실행' },
  'upload.close': { en: 'Close', ko: '닫기' },
  'upload.not_picture': {
    en: '{name} is not an image that this browser can open.',
    ko: '{name}: 이 브라우저에서 열 수 없는 이미지입니다.',
  },
  'upload.now': { en: 'Current input image', ko: '현재 입력 이미지' },

  'series.title': { en: 'Series, patches and forecast', ko: '시계열과 패치, 그리고 예측' },
  'series.note': {
    en: '{count} patches of {length} steps, one every {stride} steps. Select a patch below the curve to see which parts of the series it attends to.',
    ko: '{stride}스텝마다 {length}스텝짜리 패치를 잘라 모두 {count}개입니다. 곡선 아래에서 패치를 고르면 그 패치가 참조하는 구간이 칠해집니다.',
  },
  'series.channels': { en: 'Channel', ko: '채널' },
  'series.slider': { en: 'Selected patch; use the arrow keys to move', ko: '선택한 패치 (방향키로 이동)' },
  'series.patch': { en: 'Patch {n}, steps {from}–{to}', ko: '패치 {n}, {from}~{to}스텝' },
  'series.past': { en: 'input', ko: '입력' },
  'series.forecast': { en: 'forecast', ko: '예측' },
  'series.actual': { en: 'actual', ko: '실제값' },
  'series.last': { en: 'last value repeated', ko: '마지막 값 반복' },
  'series.band': { en: 'prediction interval ({levels})', ko: '예측 구간 ({levels})' },
  'series.now': { en: 'now', ko: '현재' },
  'series.step': { en: 'step', ko: '스텝' },
  'series.no_band': {
    en: 'This model predicts single values, so there is no prediction interval. Train with model.distribution=student_t to get one.',
    ko: '이 모델은 값 하나만 예측하므로 예측 구간이 없습니다. model.distribution=student_t로 학습한 모델에는 구간이 있습니다.',
  },
  'series.errors': { en: 'Forecast error', ko: '예측 오차' },
  'series.errors_note': {
    en: 'Over the {horizon} held-out steps, in the units of the series.',
    ko: '따로 남겨 둔 {horizon}스텝에 대한 오차이며, 단위는 원래 시계열과 같습니다.',
  },
  'series.no_truth': {
    en: 'No values were held out, so there is nothing to compare with.',
    ko: '남겨 둔 값이 없어 비교할 실제값이 없습니다.',
  },
  'series.mse': { en: 'mean squared error', ko: '평균 제곱 오차 (MSE)' },
  'series.mae': { en: 'mean absolute error', ko: '평균 절대 오차 (MAE)' },
  'series.all': { en: 'all channels', ko: '전체 채널' },
  'series.what': { en: 'Method', ko: '예측 방법' },
  'series.by_model': { en: 'this model', ko: '이 모델' },
  'series.by_last': { en: 'repeating the last value', ko: '마지막 값 반복' },
  'series.scaled_std': {
    en: 'The {count} values of {name} (mean {mean}, standard deviation {std}) are standardized to mean 0 and standard deviation 1 before they are split into patches. The forecast is scaled back.',
    ko: '패치로 자르기 전에 {name}의 값 {count}개(평균 {mean}, 표준편차 {std})를 평균 0, 표준편차 1로 정규화하고, 예측값은 다시 원래 단위로 되돌립니다.',
  },
  'series.scaled_mean': {
    en: 'The {count} values of {name} are divided by their mean absolute value before they are split into patches. The forecast is scaled back.',
    ko: '패치로 자르기 전에 {name}의 값 {count}개를 절댓값의 평균으로 나누고, 예측값은 다시 원래 단위로 되돌립니다.',
  },
  'series.scaled_none': { en: 'The values are not normalized.', ko: '값을 정규화하지 않습니다.' },

  'upload.series': { en: 'Input series', ko: '입력 시계열' },
  'upload.csv': { en: 'Choose a CSV file', ko: 'CSV 파일 선택' },
  'upload.paste': { en: 'Paste numbers', ko: '숫자 붙여넣기' },
  'upload.paste_label': {
    en: 'A header line, then one line of comma-separated numbers per step',
    ko: '첫 줄은 열 이름, 다음 줄부터 스텝마다 한 줄씩 쉼표로 구분한 숫자',
  },
  'upload.hold': { en: 'Hold out the last {n} values for comparison', ko: '마지막 {n}개 값을 비교용으로 남겨 두기' },
  'upload.needs': {
    en: 'Needs {context} steps of input, plus {horizon} for comparison.',
    ko: '입력 {context}스텝이 필요하고, 비교하려면 {horizon}스텝이 더 필요합니다.',
  },
  'upload.reading': { en: '{rows} rows, columns: {columns}', ko: '{rows}행, 열: {columns}' },
  'csv.empty': {
    en: 'The file is empty. It needs a header line and one line per step.',
    ko: '내용이 없습니다. 첫 줄에 열 이름, 다음 줄부터 스텝마다 한 줄씩 넣어 주세요.',
  },
  'csv.header': {
    en: 'The first line contains numbers. Add a header line with column names.',
    ko: '첫 줄에 숫자가 들어 있습니다. 맨 위에 열 이름을 한 줄 넣어 주세요.',
  },
  'csv.comma': {
    en: 'Line {line}: “{cell}” has a decimal comma. Use a decimal point.',
    ko: '{line}번째 줄의 “{cell}”처럼 소수점을 쉼표로 쓰면 읽을 수 없습니다. 마침표로 바꿔 주세요.',
  },
  'csv.encoding': {
    en: '{name} is neither UTF-8 nor UTF-16 text. Save it as CSV in UTF-8.',
    ko: '{name}의 인코딩이 UTF-8이나 UTF-16이 아닙니다. UTF-8 형식의 CSV로 저장해 주세요.',
  },
  'csv.packed': { en: '{name} could not be decompressed.', ko: '{name}의 압축을 풀 수 없습니다.' },
  'csv.duplicate': { en: 'Duplicate column {name}.', ko: '{name} 열이 두 번 나옵니다.' },
  'csv.ragged': {
    en: 'Line {line} has {got} cells, but the header has {wanted}.',
    ko: '{line}번째 줄의 칸 수가 {got}개로, 머리줄의 {wanted}개와 다릅니다.',
  },
  'csv.number': {
    en: 'Line {line}: “{cell}” in the column {name} is not a number.',
    ko: '{line}번째 줄 {name} 열의 “{cell}”은(는) 숫자가 아닙니다.',
  },
  'csv.none': { en: 'No column contains numbers.', ko: '숫자로 된 열이 없습니다.' },
  'csv.missing': {
    en: 'The file lacks the columns {names}, which the model needs.',
    ko: '모델에 필요한 {names} 열이 파일에 없습니다.',
  },
  'csv.short': {
    en: 'The model needs {needed} steps, but the file has {got}.',
    ko: '모델에는 {needed}스텝이 필요한데 파일에는 {got}스텝뿐입니다.',
  },
} satisfies Messages;
