"""Page keys for tests: equal names share pages, different names share none."""

from __future__ import annotations


def prompt(name, n_tokens, page_size=128):
    return [(name, page) for page in range(n_tokens // page_size)]


def branch(*parts):
    """Keys of a path of (name, pages) runs; a page's key holds its whole path, so it names its prefix."""
    keys, path = [], ()
    for name, pages in parts:
        path += (name,)
        keys += [(path, page) for page in range(pages)]
    return keys
