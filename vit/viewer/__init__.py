"""The attention viewer: a Streamlit component that answers every hover in the browser.

`payload` packs a picture and its attention into bytes, `selection` is what the viewer shows, `component` mounts
both on a page. Only `component` imports Streamlit; the JavaScript and CSS files are its other half.
"""
