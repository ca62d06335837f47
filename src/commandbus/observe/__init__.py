"""What is seen from outside: figures and their exposition. It observes and never decides."""
