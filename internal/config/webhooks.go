package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the receivers of events: their number, and the length of an address.
const (
	maxWebhooks   = 8
	maxWebhookURL = 2048
)

// EventKinds returns the kinds of events of a node.
func EventKinds() []string {
	return []string{"leadership", "commits", "copy", "health", "link", "statement"}
}

var webhookName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,29}$`)

// Kinds returns the kinds of events that the receiver gets.
func (w Webhook) Kinds() []string {
	if len(w.Events) > 0 {
		return w.Events
	}
	return slices.DeleteFunc(EventKinds(), func(k string) bool { return k == "link" })
}

// Place returns the scheme, host and port of the receiver. The rest of an address may be a secret of the receiver.
func (w Webhook) Place() string {
	u, err := url.Parse(w.URL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

var addresses = regexp.MustCompile(`(?i)(\burl["']?\s*:).*|https?://\S+`)

// withoutAddresses returns an error with lines of the file, of which one may have the address of a receiver.
func withoutAddresses(text string) string { return addresses.ReplaceAllString(text, "$1 (an address)") }

// checkWebhooks checks each receiver, and that they differ. No error has an address, which may be a secret.
func (c Config) checkWebhooks() (errs []error) {
	if len(c.Webhooks) > maxWebhooks {
		errs = append(errs, fmt.Errorf("webhooks: %d are more than %d", len(c.Webhooks), maxWebhooks))
	}
	names, urls := map[string]bool{}, map[string]bool{}
	for i, w := range c.Webhooks {
		key := fmt.Sprintf("webhooks[%d]", i)
		if !webhookName.MatchString(w.Name) {
			errs = append(errs, fmt.Errorf("%s.name %q: use a-z, 0-9, _ and -, at most 30 characters", key, w.Name))
		} else if names[w.Name] {
			errs = append(errs, fmt.Errorf("%s.name %q: another one has it", key, w.Name))
		}
		if urls[w.URL] {
			errs = append(errs, fmt.Errorf("%s.url: another one has it", key))
		}
		names[w.Name], urls[w.URL] = true, true
		if err := checkWebhookURL(w.URL); err != nil {
			errs = append(errs, fmt.Errorf("%s.url: %w", key, err))
		}
		if w.SecretFile == "" {
			errs = append(errs, fmt.Errorf("%s.secret_file is missing: events are signed", key))
		}
		if w.CA != "" && !strings.HasPrefix(w.URL, "https://") {
			errs = append(errs, fmt.Errorf("%s.ca: the url does not begin with https://", key))
		}
		for _, k := range w.Events {
			if !slices.Contains(EventKinds(), k) {
				errs = append(errs, fmt.Errorf("%s.events: %q is none of %s", key, k, strings.Join(EventKinds(), ", ")))
			}
		}
	}
	return errs
}

func checkWebhookURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return errors.New("use https://HOST/PATH, or http:// for a receiver on this machine")
	case u.Port() != "" && !isPort(u.Port()):
		return errors.New("its port is not from 1 to 65535")
	case u.User != nil:
		return errors.New("this file has no secrets: let the receiver check the signature instead of a password")
	case u.Fragment != "":
		return errors.New("it has a part after #, which is never sent")
	case len(text) > maxWebhookURL:
		return fmt.Errorf("it has more than %d characters", maxWebhookURL)
	}
	return nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
