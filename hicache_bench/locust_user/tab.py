"""The HiCache tab of Locust's web page: hit ratio and tier mix over time, TTFT by tier.

Locust's page shows one table per added tab (`extended_tabs`, `extended_tables` of its template arguments, rows
in `extended_stats` of /stats/requests); the same figures as charts are on a page of our own, /hicache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, jsonify, request

from hicache_bench.locust_user.page import PAGE

KEY = "hicache"
COLUMNS: tuple[tuple[str, str], ...] = (
    ("time", "Time"), ("requests", "Requests"), ("failed", "Failed"), ("hit_ratio", "Hit ratio"),
    ("device", "Device"), ("host", "Host"), ("storage", "Storage"), ("computed", "Computed"),
    ("ttft_device", "TTFT p50 device"), ("ttft_host", "TTFT p50 host"), ("ttft_storage", "TTFT p50 storage"),
    ("ttft_mixed", "TTFT p50 mixed"), ("ttft_cold", "TTFT p50 cold"),
)
Live = Callable[[], "dict[str, Any] | None"]


def add_tab(web_ui: Any, live: Live) -> None:
    """Add the tab and the /hicache page to a Locust web UI; `live` gives `live.Live.snapshot()` or None."""
    web_ui.template_args["extended_tabs"] = [{"title": "HiCache", "key": KEY}]
    web_ui.template_args["extended_tables"] = [
        {"key": KEY, "structure": [{"key": key, "title": title} for key, title in COLUMNS]}]
    pages = Blueprint("hicache", __name__)

    def charts() -> Response:
        return Response(PAGE, mimetype="text/html")

    def data() -> Response:
        return jsonify(live() or {"whole": None, "windows": []})

    for path, view in (("/hicache", charts), ("/hicache/data", data)):
        pages.add_url_rule(path, view_func=web_ui.auth_required_if_enabled(view))
    base = (web_ui.environment.parsed_options.web_base_path or "").rstrip("/") or None
    web_ui.app.register_blueprint(pages, url_prefix=base)

    def extend(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json and isinstance(response.json, dict):
            response.set_data(web_ui.app.json.dumps(
                {**response.json, "extended_stats": [{"key": KEY, "data": table(live())}]}))
        return response

    web_ui.app.after_request(extend)


def table(snapshot: dict[str, Any] | None) -> list[dict[str, str]]:
    """The tab's rows as text: the whole run first, then its windows, newest first; `-` where nothing is known."""
    if snapshot is None:
        return []
    newest = [(f"{window['from_s']} s", window) for window in reversed(snapshot["windows"])]
    return [_row(name, window) for name, window in [("whole run", snapshot["whole"]), *newest]]


def _row(name: str, window: dict[str, Any]) -> dict[str, str]:
    tiers, ttft = window["tiers"], window["ttft_ms"]
    known = [share for share in tiers.values() if share is not None]
    return {
        "time": name, "requests": str(window["requests"]), "failed": str(window["failed"]),
        "hit_ratio": _percent(window["hit_ratio"]),
        **{tier: _percent(share) for tier, share in tiers.items()},
        "computed": _percent(1 - sum(known) if len(known) == len(tiers) else None),
        **{f"ttft_{kind}": "-" if ttft[kind] is None else f"{ttft[kind]:.1f} ms"
           for kind in ("device", "host", "storage", "mixed", "cold")},
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
