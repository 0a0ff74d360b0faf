import numpy as np
import pytest

from hicache_bench.analysis.metrics import BY_NAME, METRICS, samples, value
from hicache_bench.stats import percentile
from tests.analysis.build import MS, T0, at, attempt, rows


def ms(name, view):
    return [None if np.isnan(x) else pytest.approx(x / MS) for x in samples(BY_NAME[name], view)]


def run(name, view):
    return value(BY_NAME[name], view)


def test_every_metric_is_named_once_and_described():
    assert len(BY_NAME) == len(METRICS)
    assert all(metric.doc for metric in METRICS)


def test_charged_from_the_schedule_and_from_the_send():
    view = rows(attempt(10, 13, [(60, 1), (80, 1)], done=81, connect_start_ns=at(14), connected_ns=at(19)))
    assert ms("ttft", view) == [50]
    assert ms("ttft_service", view) == [42]  # 47 without 5 of connecting
    assert ms("connect", view) == [5]
    assert ms("e2e", view) == [71]
    assert ms("e2e_service", view) == [63]
    assert ms("schedule_lag", view) == [3]


def test_connect_before_the_send_is_not_subtracted_twice():
    view = rows(attempt(0, 10, [(60, 1)], connect_start_ns=at(4), connected_ns=at(9)))
    assert ms("ttft_service", view) == [50]


def test_instants_of_a_long_lived_host_stay_exact():
    row = attempt(0, 0)
    row.first_token_ns = T0 + 1
    row.done_ns = T0 + 3
    assert samples(BY_NAME["ttft"], rows(row)).tolist() == [1.0]
    assert samples(BY_NAME["e2e"], rows(row)).tolist() == [3.0]


def test_unscheduled_is_charged_from_the_send():
    view = rows(attempt(None, 10, [(60, 1)]))
    assert ms("ttft", view) == [50]
    assert ms("schedule_lag", view) == [None]


def test_d06_tokens_are_what_came_not_what_was_asked():
    chunks = [(100 + 50 * i, 1) for i in range(12)]
    view = rows(attempt(0, 0, chunks, planned_output_tokens=512, token_source="estimated"))
    assert ms("tpot", view) == [50]
    assert run("output_per_s", view) == pytest.approx(12 / 0.65)


def test_d08_many_tokens_a_chunk():
    view = rows(attempt(0, 0, [(100, 1), (180, 4), (260, 4), (340, 4)]))
    assert ms("ttft", view) == [100]
    assert ms("chunk_gap", view) == [80, 80, 80]
    assert ms("itl", view) == [20] * 12
    assert ms("tpot", view) == [20]


def test_d09_ttft_is_no_itl():
    view = rows(attempt(0, 0, [(900 + 10 * i, 1) for i in range(10)]), attempt(0, 0, [(50, 1)]))
    assert ms("itl", view) == [10] * 9
    assert ms("tpot", view) == [10, None]


def test_chunks_of_one_row_never_meet_those_of_another():
    view = rows(attempt(0, 0, [(10, 1), (20, 1)]), attempt(0, 0), attempt(0, 0, [(500, 1), (530, 2)]))
    assert ms("chunk_gap", view) == [10, 30]
    assert ms("itl", view) == [10, 15, 15]


def test_d02_zero_gaps_are_legal():
    view = rows(attempt(0, 0, [(10, 1)] * 5))
    assert ms("itl", view) == [0] * 4


def test_d10_empty_answers_have_no_ttft():
    empty = [attempt(0, 0, done=5, outcome="empty") for _ in range(6)]
    view = rows(*empty, *[attempt(0, 0, [(80, 1)]) for _ in range(4)])
    ttft = samples(BY_NAME["ttft"], view)
    assert int((~np.isnan(ttft)).sum()) == 4
    assert percentile(ttft, 50) == pytest.approx(80 * MS)
    assert run("empty_answers", view) == 6
    assert run("error_rate", view) == 0


def test_d11_content_after_reasoning():
    view = rows(attempt(0, 0, [(50, 1), (60, 1), (400, 1)], first_content_ns=at(400)))
    assert ms("ttft", view) == [50]
    assert ms("ttfo", view) == [400]
    assert ms("itl", view) == [10, 340]


def test_failures_are_in_no_latency():
    view = rows(attempt(0, 0, [(50, 1), (60, 1)], outcome="server_error"), attempt(0, 2, [(50, 1)]))
    assert ms("ttft", view) == [None, 50]
    assert ms("itl", view) == []
    assert ms("schedule_lag", view) == [0, 2]
    assert run("error_rate", view) == 0.5


def test_d13_short_answers():
    full = {"chunks": [(10, 10)], "planned_output_tokens": 1024}
    view = rows(attempt(**full, ignore_eos=True), attempt(**full, ignore_eos=False), attempt(**full))
    assert run("short_answers", view) == 1


def test_d14_every_request_fails():
    view = rows(*[attempt(0, 0, outcome="http", status=404, done=1) for _ in range(20)])
    assert run("success_rate", view) == 0
    assert run("error_rate", view) == 1
    assert run("requests_per_s", view) == 0
    assert run("hit_ratio", view) is None
    assert all(np.isnan(samples(m, view)).all() for m in METRICS if m.scope != "run" and m.name != "schedule_lag")


def test_d15_nothing_divides_by_zero():
    frozen = rows(attempt(0, 0, [(0, 3)], done=0, cached_tokens=0, prompt_tokens=0))
    assert ms("tpot", frozen) == [0]
    assert run("output_per_s", frozen) is None
    assert run("hit_ratio", frozen) is None
    silent = rows(attempt(0, 0, done=1000, output_tokens=0))
    assert ms("tpot", silent) == [None]
    assert run("output_per_s", silent) == 0


def test_no_rows_at_all():
    view = rows()
    for metric in METRICS:
        if metric.scope != "run":
            assert samples(metric, view).size == 0
        else:
            assert value(metric, view) in (None, 0.0)


def test_d21_a_stall_is_charged_to_the_late_requests():
    """One in flight at a time, one due every 20 ms, the third answer takes 1 s: those behind it wait."""
    free, made = 0.0, []
    for i in range(10):
        due, takes = 20.0 * i, 1000.0 if i == 2 else 10.0
        sent = max(due, free)
        free = sent + takes
        made.append(attempt(due, sent, [(free, 1)]))
    view = rows(*made)
    assert ms("ttft_service", view)[3:] == [10] * 7
    assert ms("ttft", view)[3:] == [990, 980, 970, 960, 950, 940, 930]
    assert ms("schedule_lag", view)[3] == 980


def test_rates_count_ok_rows_that_ended_in_the_window():
    inside = attempt(0, 0, [(500, 10)], prompt_tokens=100)
    late = attempt(0, 0, [(2500, 10)], prompt_tokens=100)
    failed = attempt(0, 0, [(500, 10)], prompt_tokens=100, outcome="timeout")
    view = rows(inside, late, failed, start_ns=at(0), end_ns=at(2000))
    assert run("requests_per_s", view) == 0.5
    assert run("input_per_s", view) == 50
    assert run("output_per_s", view) == 5
    assert run("total_per_s", view) == 55


def test_d24_tiers_that_were_not_said():
    def say(cached, device=None, host=None, storage=None):
        return attempt(0, 0, [(9, 1)], prompt_tokens=1024, cached_tokens=cached, device_tokens=device,
                       host_tokens=host, storage_tokens=storage)  # fmt: skip

    view = rows(say(512, 512), say(512), say(0), say(512, 256, 128, 128))
    assert run("hit_ratio", view) == 1536 / 4096
    assert run("tier_coverage", view) == 0.75
    assert run("unattributed", view) == 512
    assert run("hit_device", view) == 768 / 3072
    assert run("hit_host", view) == 128 / 3072
    assert run("hit_storage", view) == 128 / 3072


def test_a_tier_nobody_named_is_not_zero():
    view = rows(attempt(0, 0, [(9, 1)], prompt_tokens=100, cached_tokens=50, device_tokens=50))
    assert run("hit_device", view) == 0.5
    assert run("hit_storage", view) is None


def test_ideal_hit_ratio_counts_planned_lengths_where_the_server_is_silent():
    view = rows(
        attempt(0, 0, [(9, 1)], prompt_tokens=100, ideal_cached_tokens=50),
        attempt(0, 0, [(9, 1)], planned_prompt_tokens=300, ideal_cached_tokens=100),
        attempt(0, 0, [(9, 1)], prompt_tokens=100),
    )
    assert run("ideal_hit_ratio", view) == 150 / 400


def test_only_the_measured_phase_counts():
    view = rows(attempt(0, 0, [(9, 1)], phase="prime"), attempt(0, 0, [(20, 1)]))
    assert ms("ttft", view) == [20]
