"""Server-wide services: access control, upload limits, result caches, the queue of forward passes, housekeeping."""
