"""How the docs' blocks are read: a command that is overlooked is a command that nobody runs."""

from __future__ import annotations

from tests.e2e.docs_blocks import COMMAND, blocks_of, commands_of

PAGE = """# A page

<!-- not run: `b`, `c d`: takes
a card -->
```console cluster
$ a
$ b
out
```

## Later

1. In a list

   <!-- file: values.yaml -->
   ```yaml
   a:
     b: 1
   ```

<!-- not run: minutes -->
```console
$ e
```

```text
f
```
"""


def test_a_mark_is_of_the_block_right_after_it():
    first, second, third, fourth = blocks_of(PAGE, "page.md")
    assert (first.cluster, first.reason, first.but, first.run) == (True, "takes a card", ("b", "c d"), ["a"])
    assert (second.file, second.text, second.section, second.reason) == ("values.yaml", "a:\n  b: 1\n", "Later", "")
    assert (third.cluster, third.reason, third.commands, third.run) == (False, "minutes", ["e"], [])
    assert (fourth.language, fourth.reason, fourth.file) == ("text", "", "")


def test_a_command_goes_on_after_a_backslash_and_within_quotes():
    told = "$ a \\\n  -b\nout\n$ c 'x\ny' | d\n$ e  # it's a remark\nout $ f\n"
    assert commands_of(told) == ["a \\\n  -b", "c 'x\ny' | d", "e  # it's a remark"]


def test_what_a_reader_would_type_is_known_wherever_it_stands_and_a_table_is_not():
    typed = ("kubectl get x", "  cardwise up", "$ anything", "x=$(y)", "sudo helm list", "curl")
    assert all(map(COMMAND.search, typed))
    assert not any(map(COMMAND.search, (" cardwise      11  5.1", "a kubectl", "destroy 1g", " load   issued")))
