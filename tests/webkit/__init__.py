"""The app, the lesson and the viewer's file in WebKit, Safari's engine."""
