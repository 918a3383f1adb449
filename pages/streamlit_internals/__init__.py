"""All uses of Streamlit's private modules, and all monkey patches of its methods.

No other folder imports a private module of Streamlit. tests/pages/test_streamlit_internals.py lists every name that is
used here: if an upgrade of Streamlit removes one, that test fails and names it.
"""
