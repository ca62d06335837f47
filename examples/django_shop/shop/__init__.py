"""The shop: an order, and the task that ships it."""
