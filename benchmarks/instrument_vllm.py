"""``vllm bench serve`` without the ``vllm`` command, which a CPU build of it breaks.

Run by its path with the interpreter that has vLLM; imports nothing of this project.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    main(parser.parse_args())
