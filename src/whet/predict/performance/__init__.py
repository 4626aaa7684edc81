"""Latency and throughput without a GPU: step times, and the scheduler that puts them together."""
