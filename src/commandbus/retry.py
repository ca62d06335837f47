"""Backoff functions for `RetryPolicy(backoff_schedule=…)`."""

from commandbus.domain.retry import exponential as exponential
from commandbus.domain.retry import fixed as fixed
from commandbus.domain.retry import linear as linear
from commandbus.domain.retry import none as none
