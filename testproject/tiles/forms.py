"""What the mail page asks for."""

from django import forms


class WelcomeForm(forms.Form):
    """Whom to welcome."""

    address = forms.EmailField(
        label="Address",
        max_length=254,
        widget=forms.EmailInput(attrs={"placeholder": "you@example.org", "autocomplete": "email", "autofocus": True}),
    )
