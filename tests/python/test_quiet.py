"""The demo hides what libraries print, unless it fails."""

import logging
import os
import sys

import pytest

from hybrid_pages.demo.quiet import hushed


def test_output_inside_is_hidden_by_whatever_way_it_comes(capfd):
    with hushed(verbose=False):
        print("printed")
        print("printed", file=sys.stderr)
        os.write(1, b"written\n")
        os.write(2, b"written\n")
    print("after")
    assert capfd.readouterr() == ("after\n", "")


def test_a_log_handler_made_inside_is_hidden_there_and_heard_afterwards(capfd):
    with hushed(verbose=False):
        handler = logging.StreamHandler(sys.stdout)
        handler.emit(logging.makeLogRecord({"msg": "first"}))
    handler.emit(logging.makeLogRecord({"msg": "between"}))
    with hushed(verbose=False):
        handler.emit(logging.makeLogRecord({"msg": "second"}))
    assert capfd.readouterr() == ("between\n", "")


def test_a_failure_shows_what_was_hidden(capfd):
    with pytest.raises(OSError), hushed(verbose=False):
        print("the reason")
        raise OSError
    assert capfd.readouterr() == ("", "the reason\n")


def test_verbose_hides_nothing(capfd):
    with hushed(verbose=True):
        print("shown")
    assert capfd.readouterr().out == "shown\n"
