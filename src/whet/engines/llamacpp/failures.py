"""The failures that llama-server's log shows, the most specific first."""

from __future__ import annotations

from typing import Final

from whet.engines.failures import failure_sign

FAILURES: Final = (
    failure_sign(
        "port",
        r"couldn't bind HTTP server socket|address already in use",
        "its port was taken by another program; run again (another port is chosen each time)",
    ),
    failure_sign(
        "out_of_memory",
        r"failed to allocate (?:buffer|\w+ buffer)|unable to allocate|bad_alloc|out of memory",
        "it ran out of memory; lower max_model_len or max_num_seqs, or use weights of fewer bits",
    ),
    failure_sign(
        "no_file",
        r"failed to open GGUF file (?P<file>.+?)(?: \(|$)|failed to open (?P<other>\S+)",
        "it cannot open its GGUF file; correct weights, or delete the recipe's folder to write it "
        "again",
    ),
    failure_sign(
        "not_gguf",
        r"invalid magic characters|is not a GGUF|failed to read (?:magic|header|key|tensor)",
        "its weights are not a whole GGUF file; write or download the file again",
    ),
    failure_sign(
        "truncated",
        r"tensor '[^']*' data is not within the file bounds|corrupted or incomplete",
        "its GGUF file is cut short; write or download the file again",
    ),
    failure_sign(
        "architecture",
        r"unknown model architecture: '(?P<what>[^']*)'",
        "this llama.cpp does not know the architecture {what}; use a newer one or another model",
    ),
    failure_sign(
        "tokenizer",
        r"unknown pre-tokenizer type: '(?P<what>[^']*)'",
        "this llama.cpp does not know the pre-tokenizer {what}; use a newer one",
    ),
    failure_sign(
        "draft",
        r"draft model (?P<line>[^\n]*not compatible[^\n]*)|vocab[^\n]*(?:not|mis)match",
        "the draft's vocabulary is not the target's; use a draft with the target's tokenizer",
    ),
    failure_sign(
        "flag",
        r"error: (?P<line>invalid argument: \S+|[^\n]*unknown argument[^\n]*)",
        "it does not know a flag ({line}); correct args",
    ),
)
