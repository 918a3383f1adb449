"""All uses of what Streamlit does not document: its private modules, and methods of its that are replaced.

Nothing else imports a private module of Streamlit. tests/pages/test_streamlit_internals.py lists every name that is
used here, so that an upgrade of Streamlit that removes one fails there, with a sentence that says which.
"""
