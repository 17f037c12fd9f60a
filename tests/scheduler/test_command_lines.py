"""What `hybrid-pages doctor` knows of command lines, against vLLM's own parser."""

from __future__ import annotations

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from hybrid_pages.doctor.serve_arguments import _SHORT, _is_switch


def actions():
    return AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())._actions


def test_switches_are_those_that_take_no_word():
    wrong = [
        option
        for action in actions()
        for option in action.option_strings
        if option.startswith("--")
        and option != "--help"
        and _is_switch(option.removeprefix("--")) != (action.nargs == 0)
    ]
    assert wrong == []


def test_short_options_are_those_of_vllm():
    known = [set(action.option_strings) for action in actions()]
    for short, name in _SHORT.items():
        assert {short, f"--{name}"} in [names & {short, f"--{name}"} for names in known]
