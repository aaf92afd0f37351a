"""Times as the broker writes them and producers spell them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII
)


def timestamp(text: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; `None` of what is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction = float(f"0.{match[7] or 0}")
    if second == 60:
        # A leap second counts as the last instant before it, as in the broker.
        second, fraction = 59, 0.999
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    if match[9]:
        offset = timedelta(hours=int(match[10]), minutes=int(match[11]))
        moment = moment - offset if match[9] == "+" else moment + offset
    return moment.timestamp() + fraction
