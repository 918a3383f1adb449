"""Path of the Node.js that runs JavaScript in tests: Playwright's own, which is installed with the tests."""

from playwright._impl._driver import compute_driver_executable

NODE = compute_driver_executable()[0]
