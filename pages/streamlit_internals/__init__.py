"""All uses of what Streamlit does not document: its private modules, and its methods that are replaced here."""
