"""The Node.js that runs JavaScript in tests: Playwright's own, so that it is there wherever the tests are."""

from playwright._impl._driver import compute_driver_executable

NODE = compute_driver_executable()[0]
