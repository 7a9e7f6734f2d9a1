"""Models exported for other runtimes: ONNX and CTranslate2."""
