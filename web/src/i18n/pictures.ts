import type { Messages } from '../lib/i18n.svelte';

export default {
  'pictures.layer': { en: 'Layer', ko: '레이어' },
  'pictures.layer_n': { en: 'Layer {n}', ko: '레이어 {n}' },
  'pictures.roll': { en: 'Through all layers (rollout)', ko: '전체 레이어 (롤아웃)' },
  'pictures.head': { en: 'Head', ko: '헤드' },
  'pictures.head_n': { en: 'Head {n}', ko: '헤드 {n}' },
  'pictures.mean': { en: 'Mean of all heads', ko: '모든 헤드의 평균' },
  'pictures.roll_note': {
    en: 'Rollout follows attention through every layer: half of a place stays, half is mixed by the mean of the heads, and the layers are multiplied.',
    ko: '롤아웃은 모든 레이어를 거쳐 어텐션을 따라갑니다. 각 레이어에서 절반은 그대로 남고 절반은 헤드 평균으로 섞인다고 보고, 이를 레이어 순서대로 곱합니다.',
  },

  'picture.title': { en: 'What the patch looks at', ko: '패치가 바라보는 곳' },
  'picture.note': {
    en: 'The model reads {count} patches of {high} × {wide} pixels. Choose one: the tint shows where its attention goes; the fullest stands for its strongest weight, or for three times an even share.',
    ko: '모델은 {high} × {wide} 픽셀 패치 {count}개를 읽습니다. 패치를 고르면 그 패치의 어텐션이 향하는 곳이 짙게 칠해집니다. 가장 짙은 색은 최댓값이며, 적어도 균등할 때의 세 배에 해당합니다.',
  },
  'picture.slider': { en: 'Chosen patch; the arrow keys move it', ko: '선택한 패치 (방향키로 이동)' },
  'picture.patch': { en: 'Patch in row {row}, column {column}', ko: '{row}행 {column}열 패치' },
  'picture.from': { en: 'Looking from', ko: '바라보는 위치' },
  'picture.a_patch': { en: 'a patch', ko: '패치 하나' },
  'picture.on_itself': { en: 'on itself', ko: '자기 자신' },
  'picture.on_prefix': { en: 'on {token}', ko: '{token}' },
  'picture.on_patches': { en: 'on the patches', ko: '패치 전체' },
  'picture.strongest': { en: 'strongest: row {row}, column {column}', ko: '최댓값: {row}행 {column}열' },
  'picture.shares': { en: 'Where the attention goes', ko: '어텐션의 분포' },
  'picture.heads': { en: 'Every layer and head, from the same place', ko: '같은 위치에서 본 모든 레이어와 헤드' },
  'picture.heads_note': {
    en: 'Each small picture is one head, tinted on a scale of its own. Choose one to see it large.',
    ko: '작은 그림 하나가 헤드 하나이며, 색의 기준은 헤드마다 따로입니다. 고르면 크게 볼 수 있습니다.',
  },
  'picture.classes': { en: 'What the model sees in it', ko: '모델의 판단' },
  'picture.classes_note': {
    en: 'Probabilities of the likeliest classes, after softmax.',
    ko: '소프트맥스를 거친 클래스별 확률입니다. 확률이 높은 순서입니다.',
  },

  'give.picture': { en: 'The picture to read', ko: '읽을 그림' },
  'give.file': { en: 'Choose a picture', ko: '그림 파일 선택' },
  'give.drop': { en: 'or drop or paste one', ko: '끌어다 놓거나 붙여 넣어도 됩니다' },
  'give.draw': { en: 'Draw', ko: '직접 그리기' },
  'give.example': { en: 'Example', ko: '예시' },
  'give.pad': {
    en: 'Drawing pad: draw with a pointer, or choose a digit beside it',
    ko: '그림판: 마우스나 손가락으로 그리거나 옆의 숫자를 고르세요',
  },
  'give.ready_digits': { en: 'Or have one drawn', ko: '대신 그려 주기' },
  'give.digit': { en: 'Draw the digit {n}', ko: '숫자 {n} 그리기' },
  'give.clear': { en: 'Clear', ko: '지우기' },
  'give.read': { en: 'Read it', ko: '읽기' },
  'give.close': { en: 'Close', ko: '닫기' },
  'give.not_picture': {
    en: '{name} is not a picture that this browser can open.',
    ko: '{name}: 이 브라우저에서 열 수 없는 그림입니다.',
  },
  'give.now': { en: 'The picture being read', ko: '지금 읽고 있는 그림' },

  'series.title': { en: 'The series, its patches and the forecast', ko: '시계열과 패치, 그리고 예측' },
  'series.note': {
    en: '{count} patches of {length} steps, a new one every {stride}. Choose a patch below the curve: the shade shows which stretches it looks at.',
    ko: '{stride}스텝마다 {length}스텝짜리 패치를 잘라 모두 {count}개입니다. 곡선 아래에서 패치를 고르면 그 패치가 바라보는 구간이 짙게 칠해집니다.',
  },
  'series.channels': { en: 'Channel', ko: '채널' },
  'series.slider': { en: 'Chosen patch; the arrow keys move it', ko: '선택한 패치 (방향키로 이동)' },
  'series.patch': { en: 'Patch {n}, steps {from} to {to}', ko: '패치 {n}, {from}~{to}스텝' },
  'series.past': { en: 'read', ko: '입력' },
  'series.forecast': { en: 'forecast', ko: '예측' },
  'series.truth': { en: 'what came', ko: '실제값' },
  'series.last': { en: 'last value repeated', ko: '마지막 값 반복' },
  'series.band': { en: 'likely range ({levels})', ko: '예측 구간 ({levels})' },
  'series.now': { en: 'now', ko: '현재' },
  'series.step': { en: 'step', ko: '스텝' },
  'series.no_band': {
    en: 'This model tells single values and not how sure it is, so there is no band. One trained with model.distribution=student_t has one.',
    ko: '이 모델은 값만 예측하고 확신의 정도는 알려 주지 않으므로 예측 구간이 없습니다. model.distribution=student_t로 학습한 모델에는 구간이 있습니다.',
  },
  'series.errors': { en: 'How far off it was', ko: '예측 오차' },
  'series.errors_note': {
    en: 'Over the {horizon} steps that were held back, in the series’ own units.',
    ko: '남겨 둔 {horizon}스텝에 대한 오차이며, 단위는 원래 시계열과 같습니다.',
  },
  'series.no_truth': {
    en: 'Nothing was held back, so there is no truth to compare with.',
    ko: '남겨 둔 값이 없어 비교할 실제값이 없습니다.',
  },
  'series.mse': { en: 'mean squared error', ko: '평균 제곱 오차 (MSE)' },
  'series.mae': { en: 'mean absolute error', ko: '평균 절대 오차 (MAE)' },
  'series.all': { en: 'all channels', ko: '전체 채널' },
  'series.what': { en: 'Forecast by', ko: '예측 방법' },
  'series.by_model': { en: 'this model', ko: '이 모델' },
  'series.by_last': { en: 'repeating the last value', ko: '마지막 값 반복' },
  'series.scaled_std': {
    en: 'Before the patches are cut, the {count} values of {name} (mean {mean}, standard deviation {std}) are brought to mean 0 and standard deviation 1, and the forecast is brought back the same way.',
    ko: '패치로 자르기 전에 {name}의 값 {count}개(평균 {mean}, 표준편차 {std})를 평균 0, 표준편차 1로 정규화하고, 예측값은 다시 원래 단위로 되돌립니다.',
  },
  'series.scaled_mean': {
    en: 'Before the patches are cut, the {count} values of {name} are divided by the mean of their sizes, and the forecast is brought back the same way.',
    ko: '패치로 자르기 전에 {name}의 값 {count}개를 절댓값의 평균으로 나누고, 예측값은 다시 원래 단위로 되돌립니다.',
  },
  'series.scaled_none': {
    en: 'The values are read as they are, without normalising.',
    ko: '값을 정규화하지 않고 그대로 읽습니다.',
  },

  'give.series': { en: 'The series to read', ko: '읽을 시계열' },
  'give.csv': { en: 'Choose a CSV file', ko: 'CSV 파일 선택' },
  'give.paste': { en: 'Paste numbers', ko: '숫자 붙여넣기' },
  'give.paste_label': {
    en: 'A header line, then a line for each step: numbers between commas',
    ko: '첫 줄은 열 이름, 다음 줄부터 스텝마다 한 줄씩 쉼표로 구분한 숫자',
  },
  'give.hold': { en: 'Hold back the last {n} as truth', ko: '마지막 {n}개를 실제값으로 남겨 두기' },
  'give.needs': {
    en: 'Needs {context} steps to read, and {horizon} more to compare.',
    ko: '입력 {context}스텝이 필요하고, 비교하려면 {horizon}스텝이 더 필요합니다.',
  },
  'give.reading': { en: '{rows} rows of {columns}', ko: '{columns} {rows}행' },
  'csv.empty': {
    en: 'There is nothing in it: give a header line and a line for each step.',
    ko: '내용이 없습니다. 첫 줄에 열 이름, 다음 줄부터 스텝마다 한 줄씩 넣어 주세요.',
  },
  'csv.header': {
    en: 'The first line must name the columns, and it holds numbers: give a header line.',
    ko: '첫 줄에는 열 이름이 있어야 하는데 숫자가 들어 있습니다. 맨 위에 열 이름을 한 줄 넣어 주세요.',
  },
  'csv.comma': {
    en: 'Line {line}: “{cell}” has a decimal comma. Write decimals with a point.',
    ko: '{line}번째 줄의 “{cell}”처럼 소수점을 쉼표로 쓰면 읽을 수 없습니다. 소수점을 마침표로 바꿔 주세요.',
  },
  'csv.encoding': {
    en: '{name} is neither UTF-8 nor UTF-16 text. Save it as CSV in UTF-8.',
    ko: '{name}의 인코딩이 UTF-8이나 UTF-16이 아닙니다. UTF-8 형식의 CSV로 저장해 주세요.',
  },
  'csv.packed': { en: '{name} could not be unpacked.', ko: '{name}의 압축을 풀 수 없습니다.' },
  'csv.twice': { en: 'Two columns are called {name}.', ko: '{name} 열이 두 번 나옵니다.' },
  'csv.ragged': {
    en: 'Line {line} has {got} cells where the header has {wanted}.',
    ko: '{line}번째 줄의 칸 수가 {got}개로, 머리줄의 {wanted}개와 다릅니다.',
  },
  'csv.number': {
    en: 'Line {line}: “{cell}” in the column {name} is not a number.',
    ko: '{line}번째 줄 {name} 열의 “{cell}”은(는) 숫자가 아닙니다.',
  },
  'csv.none': { en: 'No column holds numbers.', ko: '숫자로 된 열이 없습니다.' },
  'csv.missing': {
    en: 'The model reads {names}, which the file does not have.',
    ko: '모델이 읽는 {names} 열이 파일에 없습니다.',
  },
  'csv.short': {
    en: 'The model reads {needed} steps, and there are {got}.',
    ko: '모델은 {needed}스텝을 읽는데 {got}스텝뿐입니다.',
  },
} satisfies Messages;
