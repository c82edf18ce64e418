"""Bodies and values that are valid and unusual, for whoever reads what a provider signed (case C9)."""

from __future__ import annotations

from hypothesis import strategies as st

ODD_BODIES = {
    "slashes": b'{"id":"evt_1","type":"a/b","url":"https:\\/\\/x\\/y"}',
    "escaped_quote": b'{"id":"evt_1","type":"t","name":"the \\"last\\" one"}',
    "not_ascii": '{"id":"evt_1","type":"t","name":"Crème brûlée 🍮"}'.encode(),
    "escaped_not_ascii": b'{"id":"evt_1","type":"t","name":"Cr\\u00e8me"}',
    "fraction": b'{"id":"evt_1","type":"t","rate":1.0}',
    "key_order": b'{"type":"t","zebra":1,"id":"evt_1","apple":2}',
    "trailing_newline": b'{"id":"evt_1","type":"t"}\n',
    "spaces": b'{ "id" : "evt_1",\r\n\t"type" : "t" }',
}

NO_IDS = ["", "\0", "ord-1\0", "ord 1", "ord-1\n", "o" * 129, "\N{SNOWMAN}"]
"""Marks that somebody else wrote. Postgres would refuse the first of them, and no repeat would help."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
"""Whatever may stand in a field."""
