package main

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	defaultWord   = "Hello"
	forbiddenName = "Voldemort"
)

// greetingWebhook completes and validates Greetings.
type greetingWebhook struct{}

// Default implements admission.Defaulter.
func (greetingWebhook) Default(_ context.Context, g *Greeting) error {
	if g.Spec.Word == "" {
		g.Spec.Word = defaultWord
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (greetingWebhook) ValidateCreate(_ context.Context, g *Greeting) (admission.Warnings, error) {
	return nil, validate(g)
}

// ValidateUpdate implements admission.Validator.
func (greetingWebhook) ValidateUpdate(_ context.Context, _, g *Greeting) (admission.Warnings, error) {
	return nil, validate(g)
}

// ValidateDelete implements admission.Validator.
func (greetingWebhook) ValidateDelete(context.Context, *Greeting) (admission.Warnings, error) {
	return nil, nil
}

func validate(g *Greeting) error {
	if g.Spec.Who == forbiddenName {
		return errors.New("spec.who must not be " + forbiddenName)
	}
	return nil
}
