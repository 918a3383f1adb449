"""Page state in the URL and the session: reading and writing it, controls bound to the URL, and page navigation."""
