"""`python -m trainer export`: a trained model as an ONNX file with its preprocessing."""
