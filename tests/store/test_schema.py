import dataclasses
from dataclasses import dataclass

import pyarrow as pa
import pytest

from hicache_bench.errors import StoreError
from hicache_bench.records import Attempt
from hicache_bench.store.schema import (
    ATTEMPT_SCHEMA,
    METRIC_SCHEMA,
    SCHEMA_VERSION,
    VERSION_KEY,
    MetricRow,
    metrics_to_table,
    rows_to_table,
    upgrade,
)
from tests.store.build import attempt


def test_schema_is_exactly_the_record():
    assert ATTEMPT_SCHEMA.names == [item.name for item in dataclasses.fields(Attempt)]
    assert METRIC_SCHEMA.names == [item.name for item in dataclasses.fields(MetricRow)]


def test_schema_types_follow_the_annotations():
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
    for item in dataclasses.fields(Attempt):
        if item.type.startswith("list"):
            continue
        type_ = ATTEMPT_SCHEMA.field(item.name).type
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        assert plain == kinds[item.type.removesuffix(" | None")], item.name


def test_values_come_back_as_they_were():
    row = attempt(7, sent_ns=2**62, chunk_ns=[2**62 + 5, 2**62 + 9], chunk_tokens=[1, 3], server_e2e_s=0.25,
                  ignore_eos=False, error="boom")  # fmt: skip
    table = rows_to_table([row, attempt(8)])
    assert table.schema.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    assert table.to_pylist() == [dataclasses.asdict(row), dataclasses.asdict(attempt(8))]


def test_no_rows_have_the_schema():
    assert rows_to_table([]).schema.equals(ATTEMPT_SCHEMA, check_metadata=True)


def test_unknown_field_is_refused():
    @dataclass(slots=True)
    class Wider(Attempt):
        speed: float = 0.0

    with pytest.raises(StoreError, match="speed"):
        rows_to_table([attempt(), Wider(0, 0, 0, "s", "k", "", "measure", "generate", True)])


@pytest.mark.parametrize(
    ("field", "bad"),
    [("prompt_tokens", "12"), ("prompt_tokens", 1.5), ("prompt_tokens", 2**70), ("error", 404),
     ("chunk_tokens", [2**40]), ("chunk_ns", ["x"])],
)  # fmt: skip
def test_a_value_of_another_type_names_its_column(field, bad):
    with pytest.raises(StoreError, match=field):
        rows_to_table([attempt(**{field: bad})])


def test_lone_surrogates_do_not_lose_the_row():
    table = rows_to_table([attempt(error="a\ud800b", request_id="\udfff", extra=None)])
    assert table["error"].to_pylist() == ["a?b"]
    assert table["request_id"].to_pylist() == ["?"]


def test_metric_labels_are_sorted_json():
    table = metrics_to_table([MetricRow(1, 2, "engine", "m", {"b": "1", "a": "ü"}, 3.5, "gauge")])
    assert table["labels"].to_pylist() == ['{"a":"ü","b":"1"}']


def test_older_version_gets_nulls_and_newer_is_refused():
    old = pa.table({"session": pa.array([4], pa.int32())})
    found = upgrade(old, ATTEMPT_SCHEMA, ["session", "retractions"], "old.parquet")
    assert found.to_pylist() == [{"session": 4, "retractions": None}]
    assert found.schema.field("session").type == pa.int64()
    newer = old.replace_schema_metadata({VERSION_KEY: b"99"})
    with pytest.raises(StoreError, match=r"new\.parquet has schema 99.*upgrade hicache-bench"):
        upgrade(newer, ATTEMPT_SCHEMA, ["session"], "new.parquet")
