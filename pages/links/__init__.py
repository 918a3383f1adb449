"""What a page's link says and the session remembers: reading, writing, controls that follow it, ways between pages."""
