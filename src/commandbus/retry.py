"""Backoff functions for `RetryPolicy(backoff=…)`."""

from commandbus.domain.retry import exponential as exponential
from commandbus.domain.retry import fixed as fixed
from commandbus.domain.retry import linear as linear
from commandbus.domain.retry import none as none
