"""Export models for other runtimes: ONNX and CTranslate2."""
