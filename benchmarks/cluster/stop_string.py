"""Finds a text that stops an answer before its end."""

from __future__ import annotations

from collections.abc import Sequence

_UNFINISHED = "\ufffd"  # part of a character: it may become another text


def stop_string(pieces: Sequence[str], n_pieces: int) -> str:
    """The text of so many consecutive pieces, behind the middle of them, that occurs nowhere
    before. Of several pieces it begins and ends within one, if they have more than one character.
    Raises ValueError if there is none."""
    for at in range(len(pieces) // 2, len(pieces) - n_pieces):
        before, found = "".join(pieces[:at]), "".join(pieces[at : at + n_pieces])
        if not all(pieces[at : at + n_pieces]):
            continue
        begin, end = 0, len(found)
        if n_pieces > 1:
            begin = len(pieces[at]) // 2
            end -= len(pieces[at + n_pieces - 1]) // 2
        text = found[begin:end]
        is_first = (before + found).find(text) == len(before) + begin
        if text.strip() and _UNFINISHED not in text and is_first:
            return text
    raise ValueError(f"no text of {n_pieces} pieces occurs only behind the middle")
