"""The options of `holdfast serve` and `Client.serve` as settings of a service: what each changes.

A time is `30s` or a number of seconds, a size `64MiB`, a share `5%`; from Python also numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from holdfast.serve.records import ServiceSpec
    from holdfast.wire.resources import Resources

OFF: Final = "off"
_PERCENT: Final = 100
# Parts of a service that are changed field by field.
_PARTS: Final = ("policy", "limits", "guards", "breaker", "predictions")

Given = Mapping[str, Any]


def changes(given: Given) -> dict[str, Any]:
    """Fields of a service, those that were given; of its parts, again those."""
    found: dict[str, Any] = {
        "resources": _resources(given.get("cpu"), given.get("memory"), given.get("gpu")),
        "priority": given.get("priority"),
        "queue": given.get("queue"),
        "cache_entries": given.get("cache"),
        "redis": given.get("redis"),
        "sticky_header": given["sticky"].lower() if given.get("sticky") else None,
        "route_by": _header(given.get("route_by")),
        "log_predictions": given.get("log_predictions"),
        "policy": _kept(_policy(given)),
        "limits": _kept(_limits(given)),
        "guards": _guards(given),
        "breaker": _kept(_breaker(given)),
        "predictions": _kept(_predictions(given)),
        **_counts(given.get("replicas"), given.get("least"), given.get("most")),
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def changed(service: ServiceSpec, changes: Given) -> ServiceSpec:
    """The service with these fields changed."""
    given = dict(changes)
    for part in _PARTS:
        if part in given:
            given[part] = replace(getattr(service, part), **given[part])
    return replace(service, **given)


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _policy(given: Given) -> dict[str, Any]:
    slack_s = _seconds("--slower-slack", given.get("slower_slack"))
    return {
        "steps": _steps(given.get("canary")),
        "hold_s": _seconds("--hold", given.get("hold")),
        "ready_s": _seconds("--ready", given.get("ready")),
        "requests_min": given.get("requests_min"),
        "error_rate_max": _share("--errors-max", given.get("errors_max")),
        "latency_ratio_max": given.get("slower_max"),
        "latency_slack_ms": None if slack_s is None else 1000 * slack_s,
    }


def _limits(given: Given) -> dict[str, Any]:
    return {
        "rate_per_s": given.get("rate"),
        "timeout_s": _seconds("--timeout", given.get("timeout")),
        "batch_max": given.get("batch"),
        "queue_max": given.get("queue_max"),
        "wait_s": _seconds("--wait-max", given.get("wait_max")),
        "body_bytes_max": _bytes("--body-max", given.get("body_max")),
        "bodies_bytes_max": _bytes("--bodies-max", given.get("bodies_max")),
    }


def _guards(given: Given) -> dict[str, Any]:
    """A guard that is off is None: what was not given is not in it at all."""
    found: dict[str, Any] = {}
    for word, field in (("nonfinite", "nonfinite_max"), ("disagree", "disagree_max")):
        text = given.get(f"guard_{word}")
        if text is not None:
            found[field] = None if text == OFF else _share(f"--guard-{word}", text)
    shift = given.get("guard_shift")
    if shift is not None:
        found["shift_max"] = None if shift == OFF else _number("--guard-shift", shift, "0.5")
    if given.get("guard_range"):
        found["ranges"] = _ranges(given["guard_range"])
    for option, field in (("guard_outside", "outside_max"), ("shadow", "shadow_share")):
        if option in given:
            found[field] = _share(f"--{option.replace('_', '-')}", given[option])
    return found


def _breaker(given: Given) -> dict[str, Any]:
    retries = _share("--retries", given.get("retries"))
    return {
        "failures": given.get("breaker_failures"),
        "open_s": _seconds("--breaker-open", given.get("breaker_open")),
        "open_s_max": _seconds("--breaker-open-max", given.get("breaker_open_max")),
        "connect_s": _seconds("--connect-timeout", given.get("connect_timeout")),
        "requests_max": given.get("in_flight_max"),
        "retry_percent": None if retries is None else _PERCENT * retries,
    }


def _predictions(given: Given) -> dict[str, Any]:
    return {
        "topic": given.get("predictions_topic"),
        "sample": _share("--predictions-sample", given.get("predictions_sample")),
        "redact": _names(given.get("predictions_redact")),
        "keys": _names(given.get("predictions_key")),
        "blob_bytes": _bytes("--predictions-blob", given.get("predictions_blob")),
        "keep_s": _seconds("--predictions-keep", given.get("predictions_keep")),
    }


def _names(words: Sequence[str] | None) -> tuple[str, ...] | None:
    """Each once, in the order in which they came; `off`: none."""
    if words is None:
        return None
    return () if list(words) == [OFF] else tuple(dict.fromkeys(words))


def _counts(replicas: int | None, least: int | None, most: int | None) -> dict[str, int | None]:
    if replicas is not None and (least is not None or most is not None):
        raise Usage("--replicas is a number, --min and --max a range", fix="give one or the other")
    if replicas is not None:
        counts: dict[str, int | None] = {"replicas_min": replicas, "replicas_max": replicas}
        return counts
    if least is not None or most is not None:
        low = least or 1
        return {"replicas_min": low, "replicas_max": max(low, most) if most else low}
    return {}


def _resources(cpu: float | None, memory: str | int | None, gpu: int | None) -> Resources | None:
    from holdfast.wire.resources import Resources as ResourceAmounts

    if cpu is None and memory is None and gpu is None:
        return None
    return ResourceAmounts(1.0 if cpu is None else cpu, _bytes("--memory", memory) or 0, gpu or 0)


# --- words ---------------------------------------------------------------------------------------


def _header(text: str | None) -> str | None:
    return "" if text == OFF else text and text.lower()


def _steps(canary: str | Sequence[float] | None) -> tuple[int, ...] | None:
    from holdfast.serve.records import WEIGHT_TOTAL

    if canary is None:
        return None
    if not isinstance(canary, str):
        canary = ",".join(str(share) for share in canary)
    if canary == "no":
        return ()
    try:
        shares = [float(word.strip(" %")) for word in canary.split(",")]
    except ValueError:
        raise Usage(f"--canary {canary} is not percents", fix="--canary 5,25,50") from None
    return tuple(round(share * WEIGHT_TOTAL / _PERCENT) for share in shares)


def _seconds(option: str, text: str | float | None) -> float | None:
    from holdfast.control.decide import units

    if text is None:
        return None
    text = str(text)
    found = units.seconds_of(text)
    if found is None and text.replace(".", "", 1).isdigit():
        return float(text)
    if found is None:
        raise Usage(f"{option} {text} is not {units.DURATION_EXAMPLE}", fix=f"{option} 30s")
    return found


def _bytes(option: str, text: str | int | None) -> int | None:
    from holdfast.control.decide import units

    if text is None or isinstance(text, int):
        return text
    found = units.bytes_of(text)
    if found is None:
        raise Usage(f"{option} {text} is not {units.SIZE_EXAMPLE}", fix=f"{option} 64MiB")
    return found


def _share(option: str, text: str | float | None) -> float | None:
    """`5%` as 0.05; a number without the sign is percent too."""
    if text is None:
        return None
    found = _number(option, str(text).strip().removesuffix("%"), "5%") / _PERCENT
    if found > 1:
        raise Usage(f"{option} {text} is more than all of it", fix=f"{option} 5%")
    return found


def _number(option: str, text: str | float, example: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise Usage(f"{option} {text} is not a number from 0", fix=f"{option} {example}")
    return found


def _ranges(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    if list(words) == [OFF]:
        return {}
    found = {}
    for word in words:
        output, _, span = word.rpartition("=")
        low, colon, high = span.partition(":")
        try:
            found[output] = (float(low), float(high))
        except ValueError:
            colon = ""
        if not (output and colon) or not found[output][0] <= found[output][1]:
            raise Usage(
                f"--guard-range {word} is not OUTPUT=LOW:HIGH", fix="--guard-range y=0:1"
            ) from None
    return found
