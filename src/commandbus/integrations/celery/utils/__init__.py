"""Helpers of Celery that applications import."""
