"""GGUF files of a 16-bit checkpoint, quantized by llama.cpp's own tool."""
