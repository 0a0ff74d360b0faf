"""The profile a server is judged by: a named one, checked against the server, or one computed from its sizes."""

from __future__ import annotations

from hicache_bench.errors import Inconclusive, UsageError
from hicache_bench.profiles.profile import Figure, Figures, Profile, Sizes, load_profile
from hicache_bench.records import ServerInfo
from hicache_bench.verify.judge import Ground
from hicache_bench.workload.tokens import HEAD_TOKENS

AUTO = "auto"

_SHARE = 20
"""A computed profile's prompt takes this share of the device pool, so that a score of peers evicts it."""
_LEAST_TOKENS = 640
"""Well above the 256 tokens below which storage is not asked (facts 4.8), a third of the prompt left out."""
_MARGIN = 2


def profile_for(name: str, info: ServerInfo) -> Profile:
    """The profile `name`, or with `auto` one computed from the captured sizes.

    Raises UsageError when a named one was made for another page size or pool: its peers would prove nothing.
    """
    if name == AUTO:
        return computed_profile(info)
    profile = load_profile(name)
    told = {"page_size": (info.page_size, profile.server.page_size),
            "max_total_tokens": (info.device_tokens, profile.server.max_total_tokens)}
    for what, (seen, meant) in told.items():
        if seen is not None and seen != meant:
            raise UsageError(f"the profile {profile.name} is for {what} {meant:,}, the server has {seen:,}; use "
                             "--profile auto, or make one with hicache-bench calibrate --write FILE")
    if info.max_request_tokens is not None and profile.prompt_tokens + profile.output_tokens > info.max_request_tokens:
        raise UsageError(f"the profile {profile.name} sends {profile.prompt_tokens} tokens, the server takes "
                         f"{info.max_request_tokens}; use --profile auto")
    return profile


def computed_profile(info: ServerInfo) -> Profile:
    """Figures by SGLang's rules for full attention alone (facts 0.1, 0.4): every one tagged computed.

    A peer of k pages and one token keeps k pages and needs, while it runs, its pages and one more
    (mem_cache/allocation.py). Raises Inconclusive when the server does not say its sizes, or they are too
    small for the three tiers to be told apart.
    """
    page, device = info.page_size, info.device_tokens
    if page is None or device is None:
        raise Inconclusive("the server does not say its page size and pool (/server_info, /metrics); give --profile")
    pages, longest = device // page, info.max_request_tokens or device
    each = max(pages // _SHARE, -(-_LEAST_TOKENS // page), 3)
    each = min(each, (longest - 64) // page)
    if each < 3 or pages < 6 * each:
        raise Inconclusive(f"a device pool of {pages} pages of {page} tokens, with requests of up to {longest} tokens, "
                           "is too small to tell the tiers apart; start the server with a larger pool")
    output = 16
    base = (each * page + output) // page
    first = next(n for n in range(1, pages) if pages - base - each * (n - 1) < each + 2)
    stay, evict = max(first - 1 - _MARGIN, 1), first + _MARGIN

    def figure(value: int, note: str = "") -> Figure:
        return Figure(value, "computed", server=info.fingerprint, note=note)

    ratio = info.flags.get("hicache_ratio")
    sizes = Sizes(page, device, float(ratio) if isinstance(ratio, (int, float)) and ratio > 0 else 2.0)
    figures = Figures(
        match_tokens=figure(each * page, "full attention only; a sidecar may floor it further"),
        prime_requests=figure(3, "enough for models that hit on the third request"),
        stay_peers=figure(stay), evict_peers=figure(evict), resident_pages=figure(each),
        first_evicting_peers=figure(first, "pages - base - peers before < pages of one more request"),
    )
    return Profile(AUTO, each * page + 1, sizes, figures, "computed from the server's sizes", output)


def probe_tokens(profile: Profile) -> int:
    """How long a prompt must be to leave anything in the cache of this model, and be asked of storage."""
    align = profile.figures.align_tokens
    return 0 if align is None else align.value + profile.server.page_size + 1


def ground_of(profile: Profile, info: ServerInfo) -> Ground:
    """What answers of this server are judged by."""
    page = profile.server.page_size
    known = info.hicache is not None or info.storage_backend is not None

    def text(name: str) -> str | None:
        value = info.flags.get(name)
        return value if isinstance(value, str) else None

    return Ground(
        # Where a page is smaller than the checked head of a prompt, two prompts may share a few first tokens.
        {"match": profile.figures.match_tokens.value, "prompt": profile.prompt_tokens, "page": page,
         "cold": HEAD_TOKENS - 1 if page < HEAD_TOKENS else 0},
        storage=info.storage_backend is not None if known else None,
        prefetch_policy=text("hicache_storage_prefetch_policy"),
        write_policy=text("hicache_write_policy"),
    )
